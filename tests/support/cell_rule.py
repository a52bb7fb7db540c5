"""Who has which KV cell, by libllama's own rule (``llama_kv_cache::find_slot``, ``seq_rm``)."""

from __future__ import annotations

import numpy as np


class Cells:
    """Cells of sequences and the positions they hold; a negative sequence is a test's own."""

    NOBODY, HELD = -1, -2

    def __init__(self, n_ctx: int) -> None:
        self.owner = np.full(n_ctx, self.NOBODY)
        self.position = np.full(n_ctx, -1)
        self.head = 0

    def take(self, owner: int, n: int, at: int = 0) -> int:
        """The lowest free cells from the head on, for positions from ``at``; how many stretches."""
        if self.head > (self.owner >= 0).sum() + 2 * n:
            self.head = 0
        order = np.r_[self.head : self.owner.size, 0 : self.head]
        found = order[self.owner[order] == self.NOBODY][:n]
        assert len(found) == n, "no cells are left"
        self.owner[found] = owner
        self.position[found] = np.arange(at, at + n)
        self.head = int(found[-1]) + 1
        return 1 + int((np.diff(found) != 1).sum())

    def take_batch(self, owners: list[int], positions: list[int]) -> None:
        """The same for tokens of several sequences."""
        before = self.owner.copy()
        self.take(owners[0], len(owners))
        new = np.flatnonzero(self.owner != before)
        if self.head <= new[-1]:  # it went round
            new = np.r_[new[new >= self.head], new[new < self.head]]
        self.owner[new], self.position[new] = owners, positions

    def clear(self) -> None:
        """``llama_memory_clear``."""
        self.owner[:], self.position[:], self.head = self.NOBODY, -1, 0

    def free(self, which: np.ndarray) -> None:
        self.owner[which] = self.NOBODY
        if len(which):
            self.head = min(self.head, int(which[0]))

    def free_all_of(self, owner: int) -> None:
        self.free(np.flatnonzero(self.owner == owner))

    def seq_rm(self, owner: int, p0: int = -1, p1: int = -1) -> None:
        """Positions [p0, p1); -1 leaves an end open."""
        assert p0 < p1 or p1 < 0
        inside = (self.position >= p0) & ((self.position < p1) | (p1 < 0))
        self.free(np.flatnonzero((self.owner == owner) & inside))

    def seq_pos_max(self, owner: int) -> int:
        """The last position that a sequence has; -1 = none."""
        mine = self.position[self.owner == owner]
        return int(mine.max()) if mine.size else -1
