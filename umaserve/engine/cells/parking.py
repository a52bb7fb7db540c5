"""Parking: what becomes of a session's KV cells when others need the room.

Cells can be *moved* to ordinary memory and back (``llama_state_seq_get_data``), or be given up and
*recomputed* from the tokens.  Whichever is cheaper by what copying and prompt ticks cost on this
machine, as long as the memory set aside for it lasts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from umaserve.llama import Context

START_BYTES_PER_MS = 2e6  # copying both ways, until it was measured
NOTHING = np.empty(0, np.uint8)
SHARE = 8  # of the machine's memory, one part in so many may hold parked KV caches


def memory_to_park_in() -> int:
    """Bytes of ordinary memory that parked caches may take."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // SHARE
    return (8 << 30) // SHARE


class Parking:
    """Moved KV caches by slot; owns their bytes, at most ``most_bytes`` of them."""

    def __init__(self, context: Context, most_bytes: int) -> None:
        self._context = context
        self._most = most_bytes
        self._held: dict[int, tuple[np.ndarray, int]] = {}  # slot: bytes, tokens
        self._bytes_per_ms = START_BYTES_PER_MS

    @property
    def bytes_held(self) -> int:
        return sum(data.size for data, _ in self._held.values())

    def moved(self, slot: int) -> tuple[np.ndarray, int]:
        """What libllama saved of a slot's cells (uint8, borrowed), and of how many tokens; 0 of
        none."""
        return self._held.get(slot, (NOTHING, 0))

    def move_out(self, slot: int, seq: int, n_tokens: int, recompute_ms: float) -> bool:
        """Copy a sequence's cells out if that is cheaper than ``recompute_ms``; True if done.

        The caller removes the sequence afterwards in either case.  ``recompute_ms`` of 0 means that
        nobody knows, and then copying is the safer guess.
        """
        size = self._context.state_seq_size(seq)
        if size == 0 or self.bytes_held + size > self._most:
            return False
        if 0.0 < recompute_ms < 2.0 * size / self._bytes_per_ms:
            return False
        began = time.monotonic()
        data = np.empty(size, np.uint8)
        if self._context.state_seq_get(seq, data) != size:
            return False
        self._timed(size, began)
        self._held[slot] = (data, n_tokens)
        return True

    def bring(self, slot: int, context: Context, n_tokens: int) -> None:
        """Hold what sequence 0 of another context has of a row, where there is room for it.

        The context has the same model, KV types and layout.
        """
        size = context.state_seq_size(0)
        if size == 0 or self.bytes_held + size > self._most:
            return
        data = np.empty(size, np.uint8)
        if context.state_seq_get(0, data) == size:
            self._held[slot] = (data, n_tokens)

    def move_in(self, slot: int, seq: int) -> int:
        """Copy parked cells into an empty sequence; returns its tokens, 0 if that failed."""
        held = self._held.pop(slot, None)
        if held is None:
            return 0
        data, n_tokens = held
        began = time.monotonic()
        if self._context.state_seq_set(seq, data, data.size) != data.size:
            self._context.seq_rm(seq)
            return 0
        self._timed(data.size, began)
        return n_tokens

    def forget(self, slot: int) -> None:
        self._held.pop(slot, None)

    def _timed(self, size: int, began: float) -> None:
        spent_ms = max((time.monotonic() - began) * 1000.0, 1e-3)
        if size > 1 << 16:
            self._bytes_per_ms += 0.3 * (size / spent_ms - self._bytes_per_ms)
