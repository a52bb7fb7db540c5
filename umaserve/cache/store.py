"""Base of the prefix cache's stores: counters, and the choice of the entry to evict."""

from __future__ import annotations

from .entry import Entry, Part

ROOM, MEMORY = "room", "memory"  # why an entry went: others came, or the machine was short


class Store:
    """Base of the stores; texts of different domains are never matched.

    ``most_bytes`` may be changed at any time; a call of `shrink` has to follow.  A store evicts the
    entry of least ``worth``.  Each use raises it to the cost of computing the entry again over its
    bytes, plus the worth of the last eviction.  The algorithm is GreedyDual-Size (Cao and Irani,
    1997).  A lease multiplies the cost, so that the entry outlives others for a while.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes_held = 0
        self.count = 0  # entries
        self.evictions = {ROOM: 0, MEMORY: 0}
        self._clock = 0.0  # the worth of what was evicted last

    def use(self, parts: list[Part], lease: float = 1.0) -> None:
        """Raise the worth of parts that were needed: by their cost, times ``lease``."""
        for part in parts:
            entry = part.entry
            # what a MiB of it costs to compute again, in ms
            density = entry.cost_ms / max(entry.size, 1) * (1 << 20)
            entry.worth = max(entry.worth, self._clock + lease * density)

    def _note_eviction(self, entry: Entry, why: str) -> None:
        self._clock = max(self._clock, entry.worth)
        self.evictions[why] += 1
