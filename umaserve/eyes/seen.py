"""Pictures that were encoded: their embeddings in a file, and the tokens that stand for them.

A file has a checksum, what uma-eyes said, and the embeddings.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import tempfile
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import msgspec
import numpy as np

from umaserve.eyes.answers import Answer, answer_of
from umaserve.system.own_file import read_own
from umaserve.system.private_folder import make_private

MOST_BYTES = 256 << 20  # of embeddings that are kept for the next turn
CHECKSUM = 32  # bytes, in front
_NAME = "umaserve-eyes-"
_KEPT = re.compile(r"[0-9a-f]{64}(\.part)?")
_LAST_PSEUDO = -3  # -1 and -2 are marks of others


@dataclass(eq=False)
class Seen:
    """An encoded picture, whose embeddings begin at byte ``start`` of the file at ``path``.

    The file stays as long as somebody refers to this object.
    """

    answer: Answer
    tokens: list[int]
    path: str
    start: int
    n_bytes: int


def pseudo_tokens(digest: bytes, positions: int) -> list[int]:
    """Return a token below 0 for each position of a picture, by its identity alone."""
    words = np.frombuffer(hashlib.shake_256(digest).digest(4 * positions), np.int32)
    return np.minimum(words | np.int32(-(2**31)), _LAST_PSEUDO).tolist()


def tokens_of(answer: Answer, digest: bytes) -> list[int]:
    """Return the tokens of a picture in a prompt: text tokens and pseudo tokens."""
    pseudo, tokens, at = pseudo_tokens(digest, answer.positions), [], 0
    for run in answer.runs:
        tokens += [*run.tokens, *pseudo[at : at + run.positions]]
        at += run.positions
    return tokens


class SeenPictures:
    """Pictures by key, the newest last; in a private folder that goes with this process.

    With a ``folder`` they are kept there for the next daemon, if nobody else may write to it.
    """

    def __init__(self, folder: str = "") -> None:
        self._by_key: OrderedDict[bytes, Seen] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[str, Seen] = weakref.WeakValueDictionary()
        self._n_bytes = 0
        self._kept = folder
        self._folder = ""
        self._count = 0

    def get(self, key: bytes, digest: bytes) -> Seen | None:
        """Return the picture of a key, which counts as used now.  Raises ``OSError``."""
        if self._keeps():
            return self._read(key.hex(), digest)
        found = self._by_key.get(key)
        if found is None or not os.path.exists(found.path):  # others tidy such folders
            return None
        self._by_key.move_to_end(key)
        return found

    def add(
        self, key: bytes | None, answer: Answer, digest: bytes, embeddings: memoryview
    ) -> Seen:
        """Keep a picture; ``key`` of None: for this request alone.  Raises ``OSError``."""
        if key is not None and self._keeps():
            with contextlib.suppress(OSError):  # a full disk, say
                return self._write(key.hex(), answer, digest, embeddings)
        if not self._folder or not os.path.isdir(self._folder):
            _sweep()
            self._folder = tempfile.mkdtemp(prefix=f"{_NAME}{os.getuid()}-{os.getpid()}-")
        self._count += 1
        path = os.path.join(self._folder, str(self._count))
        start = _store(path, answer, embeddings)
        seen = Seen(answer, tokens_of(answer, digest), path, start, len(embeddings))
        weakref.finalize(seen, _remove, path)
        if key is not None:
            old = self._by_key.pop(key, None)
            self._by_key[key] = seen
            self._n_bytes += seen.n_bytes - (old.n_bytes if old is not None else 0)
            while self._n_bytes > MOST_BYTES and len(self._by_key) > 1:
                self._n_bytes -= self._by_key.popitem(last=False)[1].n_bytes
        return seen

    def _keeps(self) -> bool:
        """Whether pictures are kept for the next daemon: where nobody else can put any."""
        if self._kept:
            try:
                make_private(Path(self._kept))
            except OSError:  # the engine says so, which keeps prompts there
                self._kept = ""
        return bool(self._kept)

    def _read(self, name: str, digest: bytes) -> Seen | None:
        path = os.path.join(self._kept, name)
        if (seen := self._in_use.get(path)) is not None:
            return seen
        try:
            data = read_own(path, CHECKSUM + MOST_BYTES)
        except FileNotFoundError:
            return None
        if not hmac.compare_digest(data[:CHECKSUM], _checksum(data[CHECKSUM:])):
            _remove(path)
            return None
        answer, embeddings = answer_of(data[CHECKSUM:])
        os.utime(path)
        return self._used(answer, digest, path, len(data) - len(embeddings), len(embeddings))

    def _write(self, name: str, answer: Answer, digest: bytes, embeddings: memoryview) -> Seen:
        path = os.path.join(self._kept, name)
        _remove(path + ".part")
        start = _store(path + ".part", answer, embeddings)
        os.replace(path + ".part", path)
        seen = self._used(answer, digest, path, start, len(embeddings))
        self._trim()
        return seen

    def _used(self, answer: Answer, digest: bytes, path: str, start: int, size: int) -> Seen:
        seen = Seen(answer, tokens_of(answer, digest), path, start, size)
        self._in_use[path] = seen
        return seen

    def _trim(self) -> None:
        """Remove the files that were used longest ago, as far as they are too much."""
        found = []
        for entry in os.scandir(self._kept):
            if _KEPT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                facts = entry.stat(follow_symlinks=False)
                found.append((facts.st_mtime_ns, facts.st_size, entry.path))
        n_bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if n_bytes <= MOST_BYTES:
                return
            if path not in self._in_use:
                _remove(path)
                n_bytes -= size

    def close(self) -> None:
        """Remove the files that are for this process alone."""
        self._by_key.clear()
        if self._folder:
            rmtree(self._folder, ignore_errors=True)


def _store(path: str, answer: Answer, embeddings: memoryview) -> int:
    """Write a new file; return where its embeddings begin.  Raises ``OSError``."""
    said = msgspec.json.encode(answer)
    body = b"".join((len(said).to_bytes(4, "little"), said, embeddings))
    with open(path, "xb", opener=_private) as file:
        file.write(_checksum(body) + body)
    return CHECKSUM + 4 + len(said)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM).digest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _sweep() -> None:
    """Remove folders of this user's daemons that were killed."""
    mine = f"{_NAME}{os.getuid()}-"
    for folder in Path(tempfile.gettempdir()).glob(mine + "*"):
        number = folder.name.removeprefix(mine).partition("-")[0]
        try:
            if folder.lstat().st_uid == os.getuid() and number.isdigit():
                os.kill(int(number), 0)
        except ProcessLookupError:
            rmtree(folder, ignore_errors=True)
        except OSError:
            continue
