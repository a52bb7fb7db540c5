"""Pictures that were encoded: their embeddings in a file, and the tokens that stand for them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import numpy as np

from umaserve.eyes.answers import Answer

MOST_BYTES = 256 << 20  # of embeddings that are kept for the next turn
_NAME = "umaserve-eyes-"
_LAST_PSEUDO = -3  # -1 and -2 are marks of others


@dataclass(eq=False)
class Seen:
    """An encoded picture.  Its file goes when nobody refers to this object any more."""

    answer: Answer
    tokens: list[int]
    path: str
    n_bytes: int


def pseudo_tokens(digest: bytes, rows: int) -> list[int]:
    """Return a token below 0 for each embedding of a picture, by its identity alone."""
    words = np.frombuffer(hashlib.shake_256(digest).digest(4 * rows), np.int32)
    return np.minimum(words | np.int32(-(2**31)), _LAST_PSEUDO).tolist()


def tokens_of(answer: Answer, digest: bytes) -> list[int]:
    """Return the tokens of a picture in a prompt: text tokens and pseudo tokens."""
    pseudo, tokens, at = pseudo_tokens(digest, answer.rows), [], 0
    for run in answer.runs:
        tokens += [*run.tokens, *pseudo[at : at + run.rows]]
        at += run.rows
    return tokens


class SeenPictures:
    """Pictures by key, the newest last; in a private folder that goes with this process."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, Seen] = OrderedDict()
        self._n_bytes = 0
        self._folder = ""
        self._count = 0

    def get(self, key: bytes) -> Seen | None:
        """Return the picture of a key, which counts as used now."""
        found = self._by_key.get(key)
        if found is not None:
            self._by_key.move_to_end(key)
        return found

    def add(
        self, key: bytes | None, answer: Answer, digest: bytes, embeddings: memoryview
    ) -> Seen:
        """Keep a picture; ``key`` of None: for this request alone.  Raises ``OSError``."""
        if not self._folder or not os.path.isdir(self._folder):
            _sweep()
            self._folder = tempfile.mkdtemp(prefix=f"{_NAME}{os.getuid()}-{os.getpid()}-")
        self._count += 1
        path = os.path.join(self._folder, str(self._count))
        with open(path, "xb", opener=_private) as file:
            file.write(embeddings)
        seen = Seen(answer, tokens_of(answer, digest), path, len(embeddings))
        weakref.finalize(seen, _remove, path)
        if key is not None:
            old = self._by_key.pop(key, None)
            self._by_key[key] = seen
            self._n_bytes += seen.n_bytes - (old.n_bytes if old is not None else 0)
            while self._n_bytes > MOST_BYTES and len(self._by_key) > 1:
                self._n_bytes -= self._by_key.popitem(last=False)[1].n_bytes
        return seen

    def close(self) -> None:
        """Remove all files."""
        self._by_key.clear()
        if self._folder:
            rmtree(self._folder, ignore_errors=True)


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
