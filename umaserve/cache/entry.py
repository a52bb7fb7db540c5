"""Entries of the prefix cache: texts, and what libllama saved of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NOTHING = np.empty(0, np.uint8)
Key = tuple[int, int | bytes]  # what tells an entry from others of its parent


@dataclass(eq=False, slots=True)
class Entry:
    """Positions [p0, p1) of a text: ``tokens`` int32[p1 - p0] and ``data`` uint8, both owned.

    Without data it is on disk alone, at ``path``.  Without a parent it is no part of the tree any
    more.
    """

    tokens: np.ndarray
    p0: int
    data: np.ndarray
    parent: Entry | None
    cost_ms: float
    worth: float = 0.0
    path: str = ""
    n_bytes: int = 0  # of the data in that file
    comes: bool = False  # it is being read from there
    hits: int = 0  # prompts that began with it, or with a part of it
    is_mark: bool = False  # it has only what of a state cannot be cut (`umaserve.cache.whole`)
    children: dict[Key, Entry] = field(default_factory=dict)

    @property
    def p1(self) -> int:
        return self.p0 + self.tokens.size

    @property
    def size(self) -> int:
        """Bytes that it takes: what was saved, and its tokens."""
        return self.data.size + self.tokens.nbytes


@dataclass(frozen=True, slots=True)
class Part:
    """Positions of ``entry`` up to ``end``; the entry may hold more.

    Where its memory cannot be cut at ``end``, ``mark`` has the part that cannot be cut, as it was
    at ``end``.
    """

    entry: Entry
    end: int
    mark: Entry | None = None


def text_of(entry: Entry) -> np.ndarray:
    """Return all tokens (int32) of a text up to an entry's last."""
    pieces, at, end = [], entry, entry.p1
    while at.parent is not None:
        pieces.append(at.tokens[: end - at.p0])
        at, end = at.parent, at.p0
    return np.concatenate(pieces[::-1]) if pieces else entry.tokens


def common(kept: np.ndarray, wanted: np.ndarray) -> int:
    """How many tokens both begin with."""
    n = min(kept.size, wanted.size)
    differ = np.flatnonzero(kept[:n] != wanted[:n])
    return int(differ[0]) if differ.size else n

