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
    """Pictures by key, in ``folder`` for the next daemon, if nobody else may write to it.

    Without such a folder they are in a private folder that goes with this process.
    """

    def __init__(self, folder: str = "") -> None:
        self._in_use: weakref.WeakValueDictionary[str, Seen] = weakref.WeakValueDictionary()
        self._kept = folder
        self._own = ""
        self._count = 0

    def get(self, key: bytes, digest: bytes) -> Seen | None:
        """Return the picture of a key, which counts as used now.  Raises ``OSError``."""
        path = os.path.join(self._folder(), key.hex())
        if (seen := self._in_use.get(path)) is not None and os.path.exists(path):
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

    def add(
        self, key: bytes | None, answer: Answer, digest: bytes, embeddings: memoryview
    ) -> Seen:
        """Keep a picture; ``key`` of None: for this request alone.  Raises ``OSError``."""
        if key is not None:
            with contextlib.suppress(OSError):  # a full disk, say
                return self._write(key.hex(), answer, digest, embeddings)
        self._count += 1
        path = os.path.join(self._own_folder(), str(self._count))
        start = _store(path, answer, embeddings)
        seen = Seen(answer, tokens_of(answer, digest), path, start, len(embeddings))
        weakref.finalize(seen, _remove, path)
        return seen

    def _folder(self) -> str:
        """Where pictures are kept: for the next daemon where nobody else can put any there."""
        if self._kept:
            try:
                make_private(Path(self._kept))
            except OSError:  # the engine says so, which keeps prompts there
                self._kept = ""
        return self._kept or self._own_folder()

    def _own_folder(self) -> str:
        if not os.path.isdir(self._own):  # others tidy such folders
            _sweep()
            self._own = tempfile.mkdtemp(prefix=f"{_NAME}{os.getuid()}-{os.getpid()}-")
        return self._own

    def _write(self, name: str, answer: Answer, digest: bytes, embeddings: memoryview) -> Seen:
        folder = self._folder()
        path = os.path.join(folder, name)
        _remove(path + ".part")
        start = _store(path + ".part", answer, embeddings)
        os.replace(path + ".part", path)
        seen = self._used(answer, digest, path, start, len(embeddings))
        self._trim(folder)
        return seen

    def _used(self, answer: Answer, digest: bytes, path: str, start: int, size: int) -> Seen:
        seen = Seen(answer, tokens_of(answer, digest), path, start, size)
        self._in_use[path] = seen
        return seen

    def _trim(self, folder: str) -> None:
        """Remove the files that were used longest ago, as far as they are too much."""
        found = []
        for entry in os.scandir(folder):
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
        if self._own:
            rmtree(self._own, ignore_errors=True)


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
