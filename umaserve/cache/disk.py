"""Entries of the cache on disk: a file for each, for the next daemon on this machine.

A file is named by its text: the domain, and all tokens up to the entry's last.  It is written under
another name first, and has a checksum.  A folder belongs to one identity: the model, the KV types
and the library.  Only this user may write there.

The checksum is keyed.  Each folder has a key that only its owner can read, so nobody else can have
written a file whose checksum is right.  BLAKE2b takes the key as a first block of its input: the
check costs as much as without a key.

A damaged entry is removed and counts as absent.  Only regular files of this user whose names are as
`write` makes them are ever removed.  All other files stay, and are not counted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import stat
import struct
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from umaserve.system.own_file import open_to_read, read_own
from umaserve.system.private_folder import make_private

MAGIC = b"UMAKV\0\0\2"
_LENGTH = struct.Struct("<I")
SUFFIX, PART = ".kv", ".part"
KEY, KEY_BYTES = "key", 32
OWN_FOLDER = "set --cache-dir to a folder of your own"
_NAMES = re.compile(rf"[0-9a-f]{{40}}({SUFFIX}|\.[a-z0-9_]{{8}}{PART})")
PART_NS = 600 * 10**9  # a file that is being written for so long was left behind
CHECKSUM = 32  # bytes at the end, of all before them
MOST_HEAD = 1 << 16


class Head(msgspec.Struct, frozen=True):
    """Head of a file, in front of its tokens and its data."""

    domain: str
    p0: int
    n_tokens: int
    n_bytes: int
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of a folder: positions [p0, len(tokens)) of a text.  ``tokens`` int32."""

    path: str
    domain: str
    tokens: np.ndarray
    p0: int
    n_bytes: int
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the entries of an identity lie, and the key of their checksums."""

    path: Path
    key: bytes

    def names(self) -> list[str]:
        """Paths of the entries, whole or not."""
        return [str(path) for path in self.path.iterdir() if _is_entry(path)]

    def checksum(self) -> hashlib.blake2b:
        return hashlib.blake2b(digest_size=CHECKSUM, key=self.key)


def folder_of(root: str, identity: object) -> Folder:
    """Where what has this identity (JSON values) lies; made for its owner alone.

    Raises ``OSError``: also where others could change what lies there, and for a link.
    """
    text = json.dumps(identity, sort_keys=True).encode()
    folder = Path(root, hashlib.blake2b(text, digest_size=16).hexdigest())
    make_private(folder, OWN_FOLDER)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link; remove it", str(folder))
    return Folder(folder, _key(folder))


def _key(folder: Path) -> bytes:
    """The key of a folder, made where there is none.

    Of two engines that make it at once, the entries of one are damaged in the eyes of the next.
    """
    path = folder / KEY
    if not os.path.lexists(path):
        _put(path, KEY, [os.urandom(KEY_BYTES)])
    key = read_own(path, KEY_BYTES + 1)
    if len(key) != KEY_BYTES or stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
        why = f"it is not a key of {KEY_BYTES} bytes that only its owner can read; remove it"
        raise OSError(errno.EINVAL, why, str(path))
    return key


def write(
    folder: Folder, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float
) -> str:
    """Write an entry; returns its path.  Raises ``OSError``."""
    head = msgspec.json.encode(Head(domain, p0, tokens.size, data.size, cost_ms))
    parts: list[bytes | memoryview] = [
        MAGIC, _LENGTH.pack(len(head)), head, tokens.tobytes(), data.data,
    ]  # fmt: skip
    name, digest = _name(domain, tokens), folder.checksum()
    for part in parts:
        digest.update(part)
    path = folder.path / (name + SUFFIX)
    _put(path, name, [*parts, digest.digest()])
    return str(path)


def _put(path: Path, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Make ``parts`` all that ``path`` holds, at once."""
    fd, other = tempfile.mkstemp(dir=path.parent, prefix=f"{name}.", suffix=PART)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            for part in parts:
                file.write(part)
        os.replace(other, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(other)
        raise


def read(folder: Folder, kept: Kept) -> np.ndarray | None:
    """An entry's data (uint8), checked; None where the file is not what was written, and goes."""
    try:
        now = _look(Path(kept.path))
        content = read_own(kept.path)
        os.utime(kept.path)  # the oldest go first
    except OSError:
        return None
    body, digest = content[:-CHECKSUM], content[-CHECKSUM:]
    is_it = now is not None and (now.domain, now.p0, now.n_bytes) == (
        kept.domain, kept.p0, kept.n_bytes,
    )  # fmt: skip
    is_it = is_it and np.array_equal(now.tokens, kept.tokens)  # type: ignore[union-attr]
    checksum = folder.checksum()
    checksum.update(body)
    if not is_it or not hmac.compare_digest(checksum.digest(), digest):
        remove(kept.path)
        return None
    return np.frombuffer(body, np.uint8)[-kept.n_bytes :]


def scan(folder: Folder) -> list[Kept]:
    """All entries of a folder, those used last first; damaged ones are removed."""
    found = []
    for path in folder.names():
        if path.endswith(PART) and time.time_ns() - _used(path) < PART_NS:
            continue  # another engine of this model writes it
        kept = _look(Path(path)) if path.endswith(SUFFIX) else None
        if kept is None:
            remove(path)
        else:
            found.append(kept)
    return sorted(found, key=lambda kept: -_used(kept.path))


def shrink(folder: Folder, most_bytes: int) -> int:
    """Remove the files used longest ago until ``most_bytes`` hold the rest; returns how many."""
    files = []
    for path in folder.names():
        with contextlib.suppress(OSError):
            facts = os.lstat(path)
            files.append((facts.st_mtime_ns, facts.st_size, path))
    held, removed = sum(size for _, size, _ in files), 0
    for _, size, name in sorted(files):
        if held <= most_bytes:
            break
        remove(name)
        held -= size
        removed += 1
    return removed


def remove(path: str) -> None:
    """Remove an entry that is not wanted, if that can be done; anything else stays."""
    if _is_entry(Path(path)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_all(folder: Folder) -> None:
    """Remove all entries that are whole; another engine may be writing the others."""
    with contextlib.suppress(OSError):
        for path in folder.names():
            if path.endswith(SUFFIX):
                remove(path)


def _is_entry(path: Path) -> bool:
    """Whether this user's own regular file lies there, under a name that `write` makes."""
    if not _NAMES.fullmatch(path.name):
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _name(domain: str, tokens: np.ndarray) -> str:
    digest = hashlib.blake2b(domain.encode() + b"\0", digest_size=20)
    digest.update(tokens.astype("<i4").tobytes())
    return digest.hexdigest()


def _used(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _look(path: Path) -> Kept | None:
    """Read a file's head and tokens, not its data; None unless its size and its name agree."""
    try:
        with open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(len(MAGIC) + _LENGTH.size)
            if start[: len(MAGIC)] != MAGIC:
                return None
            (length,) = _LENGTH.unpack(start[len(MAGIC) :])
            head = msgspec.json.decode(file.read(min(length, MOST_HEAD)), type=Head)
            if not 0 < 4 * head.n_tokens < size:
                return None
            tokens = np.frombuffer(file.read(4 * head.n_tokens), "<i4").astype(np.int32)
    except (OSError, struct.error, msgspec.MsgspecError, ValueError):
        return None
    whole = len(start) + length + 4 * head.n_tokens + head.n_bytes + CHECKSUM
    named = path.name == _name(head.domain, tokens) + SUFFIX
    if size != whole or not named or not 0 <= head.p0 < tokens.size or head.n_bytes <= 0:
        return None
    return Kept(str(path), head.domain, tokens, head.p0, head.n_bytes, head.cost_ms)
