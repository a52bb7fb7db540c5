"""Eviction rule: which entry of the prefix cache goes first where bytes are short."""

from __future__ import annotations

from typing import Protocol

from .entry import Entry


class EvictionRule(Protocol):
    """A store evicts the entry of least ``worth``, of those that it may evict."""

    def worth(self, entry: Entry, lease: float) -> float:
        """Worth of an entry that is needed now; ``lease``: how many times its cost it is worth."""
        ...

    def evicted(self, entry: Entry) -> None:
        """Note that an entry was evicted."""
        ...


class GreedyDualSize:
    """The cheapest to compute again for its bytes, among those that were not used lately.

    By Cao and Irani, 1997.  A lease makes an entry dearer, so that it outlives others for a while.
    """

    def __init__(self) -> None:
        self._clock = 0.0  # the worth of what was evicted last

    def worth(self, entry: Entry, lease: float) -> float:
        # what a MiB of it costs to compute again, in ms
        density = entry.cost_ms / max(entry.size, 1) * (1 << 20)
        return self._clock + lease * density

    def evicted(self, entry: Entry) -> None:
        self._clock = max(self._clock, entry.worth)


RULE: type[EvictionRule] = GreedyDualSize  # of every store
