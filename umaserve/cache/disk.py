"""What is kept on disk: a file for each entry, for the next daemon on this machine.

A file is named by its text: the domain, and all tokens up to the entry's last.  It is written under
another name first, and has a checksum.  What is damaged or foreign is removed and counts as not
there.  A folder belongs to one identity: the model, the KV types and the library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from umaserve.regular_file import open_regular

MAGIC = b"UMAKV\0\0\1"
_LENGTH = struct.Struct("<I")
SUFFIX, PART = ".kv", ".part"
PART_NS = 600 * 10**9  # a file that is being written for so long was left behind
CHECKSUM = 32  # bytes at the end, of all before them
MOST_HEAD = 1 << 16


class Head(msgspec.Struct, frozen=True):
    """What stands in front of the tokens and the data of a file."""

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


def folder_of(root: str, identity: object) -> Path:
    """Where what has this identity (JSON values) lies; made for its owner alone."""
    text = json.dumps(identity, sort_keys=True).encode()
    folder = Path(root, hashlib.blake2b(text, digest_size=16).hexdigest())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write(
    folder: Path, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float
) -> str:
    """Write an entry; returns its path.  Raises ``OSError``."""
    head = msgspec.json.encode(Head(domain, p0, tokens.size, data.size, cost_ms))
    parts = (MAGIC, _LENGTH.pack(len(head)), head, tokens.tobytes(), data.data)
    path = folder / (_name(domain, tokens) + SUFFIX)
    digest = hashlib.blake2b(digest_size=CHECKSUM)
    fd, other = tempfile.mkstemp(dir=folder, suffix=PART)  # for its owner alone
    try:
        with os.fdopen(fd, "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
        os.replace(other, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(other)
        raise
    return str(path)


def read(kept: Kept) -> np.ndarray | None:
    """An entry's data (uint8), checked; None where the file is not what was written, and goes."""
    try:
        now = _look(Path(kept.path))
        with open_regular(kept.path) as file:
            content = file.read()
        os.utime(kept.path)  # the oldest go first
    except OSError:
        return None
    body, digest = content[:-CHECKSUM], content[-CHECKSUM:]
    is_it = now is not None and (now.domain, now.p0, now.n_bytes) == (
        kept.domain, kept.p0, kept.n_bytes,
    )  # fmt: skip
    is_it = is_it and np.array_equal(now.tokens, kept.tokens)  # type: ignore[union-attr]
    if not is_it or hashlib.blake2b(body, digest_size=CHECKSUM).digest() != digest:
        remove(kept.path)
        return None
    return np.frombuffer(body, np.uint8)[-kept.n_bytes :]


def scan(folder: Path) -> list[Kept]:
    """All entries of a folder, those used last first; what is none is removed."""
    found = []
    for path in folder.iterdir():
        if path.suffix == PART and time.time_ns() - _used(str(path)) < PART_NS:
            continue  # another engine of this model writes it
        kept = _look(path) if path.suffix == SUFFIX else None
        if kept is None:
            remove(str(path))
        else:
            found.append(kept)
    return sorted(found, key=lambda kept: -_used(kept.path))


def shrink(folder: Path, most_bytes: int) -> int:
    """Remove the files used longest ago until ``most_bytes`` hold the rest; returns how many."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            facts = path.stat()
            files.append((facts.st_mtime_ns, facts.st_size, str(path)))
    held, removed = sum(size for _, size, _ in files), 0
    for _, size, name in sorted(files):
        if held <= most_bytes:
            break
        remove(name)
        held -= size
        removed += 1
    return removed


def remove(path: str) -> None:
    """Remove a file that is not wanted, if that can be done."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _name(domain: str, tokens: np.ndarray) -> str:
    digest = hashlib.blake2b(domain.encode() + b"\0", digest_size=20)
    digest.update(tokens.astype("<i4").tobytes())
    return digest.hexdigest()


def _used(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _look(path: Path) -> Kept | None:
    """What a file says it holds, if its size and its name agree; its data is not read."""
    try:
        with open_regular(path) as file:
            start = file.read(len(MAGIC) + _LENGTH.size)
            if start[: len(MAGIC)] != MAGIC:
                return None
            (length,) = _LENGTH.unpack(start[len(MAGIC) :])
            head = msgspec.json.decode(file.read(min(length, MOST_HEAD)), type=Head)
            tokens = np.frombuffer(file.read(4 * max(head.n_tokens, 0)), "<i4").astype(np.int32)
            size = os.fstat(file.fileno()).st_size
    except (OSError, struct.error, msgspec.MsgspecError, ValueError):
        return None
    whole = len(start) + length + 4 * head.n_tokens + head.n_bytes + CHECKSUM
    named = path.name == _name(head.domain, tokens) + SUFFIX
    if size != whole or not named or not 0 <= head.p0 < tokens.size or head.n_bytes <= 0:
        return None
    return Kept(str(path), head.domain, tokens, head.p0, head.n_bytes, head.cost_ms)
