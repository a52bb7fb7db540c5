"""API keys: whose they are, which of them are an administrator's, and whether one is right.

A line of the file is ``KEY``, ``NAME KEY`` or ``NAME KEY admin``.  A key without a name is called
by its line's number.  Empty lines and lines that begin with ``#`` are skipped.  Lines with the same
name are keys of one owner.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from umaserve.system.regular_file import open_regular

MIN_CHARS = 16  # a key that is shorter can be guessed
MAX_NAME_CHARS = 128  # as the socket has it
ADMIN = "admin"


class KeyFileError(Exception):
    """The file cannot be used; the message says why and what to do, and holds no key."""


class Key(NamedTuple):
    """``name`` of its owner.  ``admin``: its requests may do what the daemon's own user may."""

    name: str
    admin: bool = False


class Keys:
    """``find`` a key; false: nobody is asked for one."""

    def __init__(self, keys: Mapping[str, Key], asked: bool = True) -> None:
        self._digests = [(_digest(text), key) for text, key in keys.items()]
        self._asked = asked

    def __bool__(self) -> bool:
        return self._asked and bool(self._digests)

    def find(self, text: str) -> Key | None:
        """``None`` for a wrong key.  Takes as long for each, whatever of it is right."""
        given, found = _digest(text), None
        for digest, key in self._digests:
            if hmac.compare_digest(digest, given):
                found = key
        return found


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str, *, asked: bool = True) -> Keys:
    """The keys of a file; none where ``path`` is empty.  Raises ``KeyFileError``.

    ``asked``: False for the file with the owner's own key, which nobody is asked for.
    """
    return Keys(_keys_in(path, f"--api-key-file {path}" if asked else path) if path else {}, asked)


def _keys_in(path: str, place: str) -> dict[str, Key]:
    """The keys of a file by their texts; ``place`` is what messages call it."""
    lines = [
        (number, words)
        for number, line in enumerate(_text_of(path, place).splitlines(), 1)
        if (words := line.split()) and not words[0].startswith("#")
    ]
    named = {words[0] for _, words in lines if len(words) > 1}
    keys: dict[str, Key] = {}
    for number, words in lines:
        try:
            text, key = _read(words, number, named)
            if keys.setdefault(text, key) != key:
                raise ValueError("another line has the same key with another name or mark")
        except ValueError as error:
            raise KeyFileError(f"{place}, line {number}: {error}") from None
    if not keys:
        raise KeyFileError(f"{place} holds no key")
    return keys


def _text_of(path: str, place: str) -> str:
    try:
        with open_regular(path) as file:
            mode, owner = os.fstat(file.fileno()).st_mode, os.fstat(file.fileno()).st_uid
            text = file.read().decode("utf-8")
    except OSError as error:
        raise KeyFileError(f"{place}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{place} is not a text file in UTF-8") from None
    if owner not in (os.geteuid(), 0):
        raise KeyFileError(f"{place} belongs to another user (uid {owner})")
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(f"other users can read {place}; chmod 600 {path}")
    return text


def _read(words: list[str], number: int, named: set[str]) -> tuple[str, Key]:
    """The key of a line and whose it is; ``named`` are the names that lines give.

    Raises ``ValueError``.
    """
    if len(words) > 3 or (len(words) == 3 and words[2] != ADMIN):
        raise ValueError(f"it takes KEY, NAME KEY or NAME KEY {ADMIN}")
    text = words[min(1, len(words) - 1)]
    if len(text) < MIN_CHARS:
        hint = f"; a key that is marked {ADMIN} needs a name" if words[1:] == [ADMIN] else ""
        raise ValueError(f"the key has fewer than {MIN_CHARS} characters{hint}")
    if len(words) > 1:
        if len(words[0]) > MAX_NAME_CHARS:
            raise ValueError(f"the name has more than {MAX_NAME_CHARS} characters")
        return text, Key(words[0], len(words) == 3)
    name = f"key-{number}"
    while name in named:  # of another owner, who shares nothing with this one
        name = f"unnamed-{name}"
    return text, Key(name)
