"""API keys: who they are for, and whether one is right.

A line of the file is ``NAME KEY``, or a key alone, whose name is its number in the file.  Empty
lines and lines that begin with ``#`` are skipped.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from hashlib import sha256

from umaserve.regular_file import open_regular

MIN_CHARS = 16  # a key that is shorter can be guessed


class KeyFileError(Exception):
    """The file cannot be used; the message says why and what to do, and holds no key."""


class Keys:
    """``name_of`` a key; no keys at all: nobody is asked for one."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """``names`` of keys."""
        self._digests = [(_digest(key), name) for key, name in names.items()]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name_of(self, key: str) -> str | None:
        """``None`` for a wrong key.  Takes as long for each, whatever of it is right."""
        given, found = _digest(key), None
        for digest, name in self._digests:
            if hmac.compare_digest(digest, given):
                found = name
        return found


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str) -> Keys:
    """The keys of a file; none where ``path`` is empty.  Raises ``KeyFileError``."""
    if not path:
        return Keys({})
    try:
        with open_regular(path) as file:
            mode, owner = os.fstat(file.fileno()).st_mode, os.fstat(file.fileno()).st_uid
            text = file.read().decode("utf-8")
    except OSError as error:
        raise KeyFileError(f"--api-key-file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"--api-key-file {path} is not a text file in UTF-8") from None
    if owner not in (os.geteuid(), 0):
        raise KeyFileError(f"--api-key-file {path} belongs to another user (uid {owner})")
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(f"other users can read --api-key-file {path}; chmod 600 {path}")
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise KeyFileError(f"--api-key-file {path}, line {number}: it takes NAME KEY")
        if len(words[-1]) < MIN_CHARS:
            few = f"the key has fewer than {MIN_CHARS} characters"
            raise KeyFileError(f"--api-key-file {path}, line {number}: {few}")
        names[words[-1]] = words[0] if len(words) == 2 else f"key-{number}"
    if not names:
        raise KeyFileError(f"--api-key-file {path} holds no key")
    return Keys(names)
