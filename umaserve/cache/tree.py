"""A tree of token ids, and what libllama saved of their keys and values.

An entry holds positions [p0, p1) of a text.  Its parent holds what comes before, or more.  Where
two texts part within an entry, the second goes on from there with an entry of its own.  So what
texts share is kept once, and an entry is never cut.  Nothing here touches libllama or a clock.

When bytes are short, only an entry on which no other rests may go (`umaserve.cache.store`).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from .entry import NOTHING, Entry, Part, common
from .store import ROOM, Store

NOBODY = np.empty(0, np.int32)
SLACK = 0.95  # of the bytes, to which an eviction goes on


class PrefixTree(Store):
    """Kept texts of each domain; texts of different domains are never matched."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._roots: dict[str, Entry] = {}

    def match(self, domain: str, tokens: np.ndarray) -> list[Part]:
        """The longest beginning of ``tokens`` (int32) that is kept, as parts in order."""
        parts: list[Part] = []
        at = self._roots.get(domain)
        position = 0
        while at is not None and position < tokens.size:
            entry = at.children.get((position, int(tokens[position])))
            if entry is None:
                break
            position += common(entry.tokens, tokens[position:])
            parts.append(Part(entry, position))
            at = entry
        return parts

    def nearest(self, domain: str, tokens: np.ndarray, most: int) -> tuple[int, list[int]]:
        """How many of ``tokens`` are kept, and up to ``most`` that follow there in another text.

        They are the rest of the last entry itself; from its end on, the entry used most goes on.
        """
        parts = self.match(domain, tokens)
        at = parts[-1].entry if parts else self._roots.get(domain)
        known = end = parts[-1].end if parts else 0
        found: list[int] = []
        while at is not None and len(found) < most:
            rest = at.tokens[end - at.p0 :][: most - len(found)]
            found += rest.tolist()
            end += rest.size
            others = [each for (p0, _), each in at.children.items() if p0 == end]
            at = max(others, key=lambda each: each.hits, default=None)
        return known, found

    def add(
        self, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float,
        lease: float = 1.0,
    ) -> Entry | None:  # fmt: skip
        """Keep what was saved of positions [p0, len(tokens)) of a text; returns its entry.

        What comes before has to be kept, and none of these positions: `match` says both.  None
        where that is not so, or where ``most_bytes`` are too few.  ``cost_ms``: to compute them
        again.  ``data`` may be empty: it is on disk, and the caller sets ``path``.  ``lease``: see
        `use`.
        """
        parts = self.match(domain, tokens)
        if (parts[-1].end if parts else 0) != p0 or p0 >= tokens.size:
            return None
        parent = parts[-1].entry if parts else self._root(domain)
        entry = Entry(tokens[p0:].copy(), p0, data, parent, cost_ms)
        self.use([*parts, Part(entry, entry.p1)], lease)
        if entry.size > self.most_bytes:
            return None
        parent.children[p0, int(tokens[p0])] = entry
        self.bytes_held += entry.size
        self.count += 1
        self.shrink(kept=entry)
        if self.bytes_held > self.most_bytes:  # what it rests on takes all there is
            self._remove(entry)
            return None
        return entry

    def usable(self, domain: str, tokens: np.ndarray) -> int:
        """All of them: a text is cut anywhere."""
        return int(tokens.size)

    def find(self, domain: str, tokens: np.ndarray, p0: int, cost_ms: float) -> Entry | None:
        """Take over an entry that is on disk; the caller sets its ``path``."""
        return self.add(domain, tokens, p0, NOTHING, cost_ms)

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

        A little more goes than has to, so that this is not needed each time.  ``why``: ROOM or
        MEMORY, which `evictions` counts apart.
        """
        if self.bytes_held <= self.most_bytes:
            return
        order = count()  # two may be worth the same, and entries have no order
        leaves = [
            (entry.worth, next(order), entry) for entry in self.entries()
            if entry is not kept and _is_last(entry)
        ]  # fmt: skip
        heapify(leaves)
        while leaves and self.bytes_held > SLACK * self.most_bytes:
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
        """Raises AssertionError where the tree contradicts itself; for tests, and while idle."""
        found = list(self.entries())
        assert sum(entry.size for entry in found) == self.bytes_held
        assert len(found) == self.count
        for entry in found:
            assert entry.data.size or entry.path
            parent = entry.parent
            assert parent is not None and entry.tokens.size
            assert parent.children[entry.p0, int(entry.tokens[0])] is entry
            is_root = parent.parent is None
            assert entry.p0 == 0 if is_root else parent.p0 < entry.p0 <= parent.p1

    def _root(self, domain: str) -> Entry:
        return self._roots.setdefault(domain, Entry(NOBODY, 0, NOTHING, None, 0.0))

    def _evict(self, leaf: Entry, why: str) -> None:
        self._note_eviction(leaf, why)
        if leaf.path:
            self.bytes_held -= leaf.data.size
            leaf.data = NOTHING
        else:
            self._remove(leaf)

    def _remove(self, entry: Entry) -> None:
        """Take an entry out, and all that rests on it."""
        parent = entry.parent
        assert parent is not None
        del parent.children[entry.p0, int(entry.tokens[0])]
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
