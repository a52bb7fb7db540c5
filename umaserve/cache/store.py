"""Base of the prefix cache's stores: entries of each domain, and the choice of those that go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from .entry import NOTHING, Entry, Key, Part

ROOM, MEMORY = "room", "memory"  # why an entry went: others came, or the machine was short
NOBODY = np.empty(0, np.int32)


class Store(ABC):
    """Base of the stores; texts of different domains are never matched.

    ``most_bytes`` may be changed at any time; a call of `shrink` has to follow.  A store evicts the
    entry of least ``worth``.  Each use raises it to the cost of computing the entry again over its
    bytes, plus the worth of the last eviction.  The algorithm is GreedyDual-Size (Cao and Irani,
    1997).  A lease multiplies the cost, so that the entry outlives others for a while.
    """

    SLACK = 1.0  # of the bytes, to which an eviction goes on

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes_held = 0
        self.count = 0  # entries
        self.evictions = {ROOM: 0, MEMORY: 0}
        self._clock = 0.0  # the worth of what was evicted last
        self._roots: dict[str, Entry] = {}

    def use(self, parts: list[Part], lease: float = 1.0) -> None:
        """Raise the worth of parts that were needed: by their cost, times ``lease``."""
        for part in parts:
            entry = part.entry
            # what a MiB of it costs to compute again, in ms
            density = entry.cost_ms / max(entry.size, 1) * (1 << 20)
            entry.worth = max(entry.worth, self._clock + lease * density)

    def fill(self, entry: Entry, data: np.ndarray) -> None:
        """Have the data of an entry in memory that was on disk alone."""
        if entry.data.size:
            return
        entry.data = data
        if entry.parent is not None:
            self.bytes_held += data.size
            self.shrink(kept=entry)

    def lose(self, entry: Entry) -> None:
        """An entry's file is gone.  What is not in memory either goes with all that rests on it."""
        entry.path = ""
        if not entry.data.size and entry.parent is not None:
            self._remove(entry)

    def shrink(self, kept: Entry | None = None, why: str = ROOM) -> None:
        """Evict until ``most_bytes`` hold it all; ``kept`` and what it rests on stay.

        An entry that is on disk too leaves its tokens.  ``why``: ROOM or MEMORY, which `evictions`
        counts apart.
        """
        if self.bytes_held <= self.most_bytes:
            return
        order = count()  # two may be worth the same, and entries have no order
        leaves = [
            (entry.worth, next(order), entry) for entry in self.entries()
            if entry is not kept and _is_last(entry)
        ]  # fmt: skip
        heapify(leaves)
        while leaves and self.bytes_held > self.SLACK * self.most_bytes:
            leaf = heappop(leaves)[2]
            parent = leaf.parent
            self._evict(leaf, why)
            if parent is not None and parent is not kept and _is_last(parent):
                heappush(leaves, (parent.worth, next(order), parent))

    def drop(self, domain: str) -> None:
        """Forget all texts of a domain."""
        for entry in list(self._root(domain).children.values()):
            self._remove(entry)
        self._roots.pop(domain, None)

    def clear(self) -> None:
        for domain in self.domains():
            self.drop(domain)
        self._roots.clear()

    def entries(self, domain: str | None = None) -> Iterator[Entry]:
        """All entries, or those of one domain; parents first."""
        roots = self._roots.values() if domain is None else [self._root(domain)]
        left = [child for root in roots for child in root.children.values()]
        while left:
            entry = left.pop()
            yield entry
            left += entry.children.values()

    def domains(self) -> list[str]:
        return [name for name, root in self._roots.items() if root.children]

    def check(self) -> None:
        """Raises AssertionError where the store contradicts itself; for tests, and while idle."""
        found = list(self.entries())
        assert sum(entry.size for entry in found) == self.bytes_held
        assert len(found) == self.count
        for entry in found:
            assert entry.data.size or entry.path
            parent = entry.parent
            assert parent is not None and entry.tokens.size
            assert parent.children[self._key(entry)] is entry
            is_root = parent.parent is None
            assert entry.p0 == 0 if is_root else parent.p0 < entry.p0 <= parent.p1

    @abstractmethod
    def _key(self, entry: Entry) -> Key:
        """Return the key of an entry among the children of its parent."""

    def _keep(self, entry: Entry) -> Entry | None:
        """Add an entry, whose worth is known, to its parent; None where there is no room."""
        parent = entry.parent
        assert parent is not None
        if entry.size > self.most_bytes:
            return None
        parent.children[self._key(entry)] = entry
        self.bytes_held += entry.size
        self.count += 1
        self.shrink(kept=entry)
        if self.bytes_held > self.most_bytes:  # what it rests on takes all there is
            self._remove(entry)
            return None
        return entry

    def _root(self, domain: str) -> Entry:
        return self._roots.setdefault(domain, Entry(NOBODY, 0, NOTHING, None, 0.0))

    def _evict(self, leaf: Entry, why: str) -> None:
        self._clock = max(self._clock, leaf.worth)
        self.evictions[why] += 1
        if leaf.path:
            self.bytes_held -= leaf.data.size
            leaf.data = NOTHING
        else:
            self._remove(leaf)

    def _remove(self, entry: Entry) -> None:
        """Take an entry out, and all that rests on it."""
        parent = entry.parent
        assert parent is not None
        del parent.children[self._key(entry)]
        if parent.parent is None and not parent.children:  # the last of its domain
            self._roots = {name: root for name, root in self._roots.items() if root is not parent}
        left = [entry]
        while left:
            gone = left.pop()
            self.bytes_held -= gone.size
            self.count -= 1
            gone.path, gone.parent = "", None  # who copies from it just now still may
            left += gone.children.values()


def _is_last(entry: Entry) -> bool:
    """Whether no entry rests on it whose data is in memory."""
    return entry.data.size > 0 and not any(c.data.size for c in entry.children.values())
