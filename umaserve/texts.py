"""Paths are bytes, and messages are text: what holds when a path is no UTF-8.

Python spells such a byte as half of a surrogate pair, which no JSON and no MessagePack can carry.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

SCHEME = "file://"
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with U+FFFD for every byte that was no character."""
    return _HALF_OF_A_PAIR.sub("\ufffd", text)


def printable_in(value: Any) -> Any:
    """Apply `printable` to every string in ``value``: in lists and dicts, however deep."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_in(key): printable_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_in(item) for item in value]
    return value


def sendable_path(path: str) -> str:
    """``path`` as a message can carry it: itself, or a ``file://`` URI where it is no UTF-8."""
    if not _HALF_OF_A_PAIR.search(path):
        return path
    return SCHEME + quote_from_bytes(os.fsencode(os.path.abspath(path)))


def path_of(name: str) -> str:
    """The path that a ``file://`` URI stands for; any other name is a path already."""
    if not name.startswith(SCHEME + "/"):
        return name
    return os.fsdecode(unquote_to_bytes(name[len(SCHEME) :]))
