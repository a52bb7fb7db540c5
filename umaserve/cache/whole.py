"""Whole states of memories that cannot be cut: recurrent, hybrid, sliding windows.

What libllama saved of a text stands for all of it, and is of use only to texts that begin with the
whole of it.  The interface is that of `umaserve.cache.tree`, whose entries these are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .tree import ROOM, Entry, Part, Store, common

LEAST_NEW = 64  # tokens of a prompt to be computed: for fewer no tick is cut in two
NEAR = 16  # tokens before a prompt's end that the next turn may not have in common
GENERATION = 64  # tokens that a template may put behind the last message, at most
APART = 8  # tokens between two states


def checkpoints(tokens: np.ndarray, ends: np.ndarray, known: int) -> list[int]:
    """After how many of a prompt's tokens (int32) its state is saved on the way, in order.

    ``ends``: ids that end a message.  ``known``: tokens that need not be computed.  Two states: the
    one behind the first message may serve other chats, the one behind the last message serves the
    next turn.  Where no id tells that end, it is a few tokens before the prompt's own.
    """
    size = int(tokens.size)
    if size - known < LEAST_NEW:
        return []
    behind = np.flatnonzero(np.isin(tokens, ends)) + 1
    wanted = {size - NEAR}
    if behind.size:
        last = int(behind[-1])
        wanted = {int(behind[0]), last if last >= size - GENERATION else size - NEAR}
    return [at for at in sorted(wanted) if known + APART <= at < size]


class WholeTexts(Store):
    """Texts of each domain with their states; at most ``most_bytes`` of them (`shrink`)."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._kept: dict[str, list[Entry]] = {}

    def match(self, domain: str, tokens: np.ndarray) -> list[Part]:
        """The longest kept text that ``tokens`` (int32) begin with, as the only part, or none."""
        fitting = [
            entry for entry in self._kept.get(domain, ())
            if entry.p1 <= tokens.size and np.array_equal(entry.tokens, tokens[: entry.p1])
        ]  # fmt: skip
        if not fitting:
            return []
        longest = max(fitting, key=lambda entry: entry.p1)
        return [Part(longest, longest.p1)]

    def nearest(self, domain: str, tokens: np.ndarray, most: int) -> tuple[int, list[int]]:
        """As `PrefixTree.nearest`; not all of what is the same can be restored."""
        kept = [(common(each.tokens, tokens), each) for each in self._kept.get(domain, ())]
        if not kept:
            return 0, []
        end, entry = max(kept, key=lambda each: each[0])
        return end, entry.tokens[end : end + most].tolist()

    def add(
        self, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float,
        lease: float = 1.0,
    ) -> Entry | None:  # fmt: skip
        """Keep the state after a text; None where it is there already, or has no room."""
        parts = self.match(domain, tokens)
        if p0 or not tokens.size or parts and parts[0].end == tokens.size:
            return None
        entry = Entry(tokens.copy(), 0, data, None, cost_ms)
        if entry.size > self.most_bytes:
            return None
        self.use([Part(entry, entry.p1)], lease)
        self._kept.setdefault(domain, []).append(entry)
        self.bytes_held += entry.size
        self.count += 1
        self.shrink(kept=entry)
        return entry

    def shrink(self, kept: Entry | None = None, why: str = ROOM) -> None:
        """Evict what is worth least until ``most_bytes`` hold it all; ``kept`` stays."""
        while self.bytes_held > self.most_bytes:
            others = [
                (entry.worth, at, name) for name, entries in self._kept.items()
                for at, entry in enumerate(entries) if entry is not kept
            ]  # fmt: skip
            if not others:
                return
            worth, at, name = min(others)
            self._clock = max(self._clock, worth)
            self.bytes_held -= self._kept[name].pop(at).size
            self.count -= 1
            self.evictions[why] += 1

    def drop(self, domain: str) -> None:
        """Forget all texts of a domain."""
        for entry in self._kept.pop(domain, []):
            self.bytes_held -= entry.size
            self.count -= 1

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.bytes_held = self.count = 0

    def entries(self, domain: str) -> Iterator[Entry]:
        """Those of one domain."""
        yield from self._kept.get(domain, ())

    def domains(self) -> list[str]:
        """Those that have entries."""
        return [name for name, entries in self._kept.items() if entries]

    def check(self) -> None:
        """Raises AssertionError where the sums contradict each other."""
        found = [entry for entries in self._kept.values() for entry in entries]
        assert sum(entry.size for entry in found) == self.bytes_held
        assert len(found) == self.count
