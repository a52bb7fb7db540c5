"""A tree of token ids, and what libllama saved of their keys and values.

An entry holds positions [p0, p1) of a text.  Its parent holds what comes before, or more.  Where
two texts part within an entry, the second goes on from there with an entry of its own.  So what
texts share is kept once, and an entry is never cut.  Nothing here touches libllama or a clock.

When bytes are short, only an entry on which no other rests may go (`umaserve.cache.store`).
"""

from __future__ import annotations

import numpy as np

from .entry import NOTHING, Entry, Key, Part, common
from .store import Store


class PrefixTree(Store):
    """Kept texts of each domain; texts of different domains are never matched."""

    SLACK = 0.95  # a little more goes than has to, so that this is not needed each time

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
        return self._keep(entry)

    def usable(self, domain: str, tokens: np.ndarray) -> int:
        """All of them: a text is cut anywhere."""
        return int(tokens.size)

    def find(self, domain: str, tokens: np.ndarray, p0: int, cost_ms: float) -> Entry | None:
        """Take over an entry that is on disk; the caller sets its ``path``."""
        return self.add(domain, tokens, p0, NOTHING, cost_ms)

    def _key(self, entry: Entry) -> Key:
        return entry.p0, int(entry.tokens[0])
