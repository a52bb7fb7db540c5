"""What a store of the prefix cache can do, and what all stores have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from .entry import Entry, Part
from .rule import RULE, EvictionRule

ROOM, MEMORY = "room", "memory"  # why an entry went: others came, or the machine was short


class PrefixStore(Protocol):
    """Kept texts of each domain; texts of different domains are never matched.

    ``most_bytes`` may be changed at any time; a call of `shrink` has to follow.
    """

    most_bytes: int
    bytes_held: int
    count: int  # entries
    evictions: dict[str, int]

    def match(self, domain: str, tokens: np.ndarray) -> list[Part]:
        """The longest beginning of ``tokens`` (int32) that can be restored, as parts in order."""
        ...

    def usable(self, domain: str, tokens: np.ndarray) -> int:
        """Number of ``tokens`` (int32) that a longer text could be of use for, once it is saved."""
        ...

    def nearest(self, domain: str, tokens: np.ndarray, most: int) -> tuple[int, list[int]]:
        """How many of ``tokens`` are kept, and up to ``most`` that follow there in another text."""
        ...

    def use(self, parts: list[Part], lease: float = 1.0) -> None:
        """These were needed, and stay longer: by their cost, times ``lease``."""
        ...

    def add(
        self, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float,
        lease: float = 1.0,
    ) -> Entry | None:  # fmt: skip
        """Keep what was saved of positions [p0, len(tokens)) of a text; None where it cannot be."""
        ...

    def find(self, domain: str, tokens: np.ndarray, p0: int, cost_ms: float) -> Entry | None:
        """Take over an entry that is on disk; the caller sets its ``path``."""
        ...

    def fill(self, entry: Entry, data: np.ndarray) -> None:
        """Have the data of an entry in memory that was on disk alone."""
        ...

    def lose(self, entry: Entry) -> None:
        """An entry's file is gone.  What is not in memory either goes with all that rests on it."""
        ...

    def shrink(self, kept: Entry | None = None, why: str = ROOM) -> None:
        """Evict until ``most_bytes`` hold it all; ``kept`` stays.  ``why``: ROOM or MEMORY."""
        ...

    def drop(self, domain: str) -> None:
        """Forget all texts of a domain."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def entries(self, domain: str) -> Iterable[Entry]:
        """Entries of a domain."""
        ...

    def domains(self) -> list[str]:
        """Return the domains that have entries."""
        ...

    def check(self) -> None:
        """Raise AssertionError where the store contradicts itself."""
        ...


class Store:
    """Base of the stores: their counters, and the eviction rule."""

    def __init__(self, most_bytes: int, rule: EvictionRule | None = None) -> None:
        self.most_bytes = most_bytes
        self.bytes_held = 0
        self.count = 0
        self.evictions = {ROOM: 0, MEMORY: 0}
        self._rule = rule or RULE()

    def use(self, parts: list[Part], lease: float = 1.0) -> None:
        for part in parts:
            worth = self._rule.worth(part.entry, lease)
            part.entry.worth = max(part.entry.worth, worth)
