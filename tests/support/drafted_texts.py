"""What drafts are worth on a text, on a machine whose ticks cost what is said here.

The index, the rates and the choice are the engine's own.  The text is known in advance, so a draft
is right where it is the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from umaserve.drafts import index, rates, worth
from umaserve.policy.cost.model import CostModel, learn

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
END = 20  # tokens of each text that are left


class Machine(NamedTuple):
    """``price`` of a tick of so many tokens, in ms, and what a change of the number costs."""

    price: Callable[[int], float]
    change_ms: float


class Stream:
    """One text that is written from ``at`` on."""

    def __init__(self, row: int, text: Sequence[int], at: int) -> None:
        self.row, self.at = row, at
        self.text = np.asarray(text, np.int32)
        self.found_at = self.same = 0
        self.drafts = np.zeros(worth.MOST_EACH, np.int32)

    def look(self, texts: index.Index, wanted: worth.Wanted) -> None:
        row, n = self.row, self.at
        if 0 < self.found_at < n:
            was_right = self.drafts[0] == self.text[self.found_at]
            rates.note(wanted.rates, row, self.same, float(was_right))
        while not index.keep_up(texts, row, self.text, n):
            pass
        place, self.same = index.find(texts, row, self.text, n)
        wanted.rows[row], wanted.most[row], wanted.same[row] = row, worth.MOST_EACH, self.same
        index.copy_on(self.text, n, place if self.same else max(n - 15, 0), self.drafts, 15)
        self.found_at = n if self.same else 0

    def take(self, wanted: worth.Wanted, wall_ms: float) -> int:
        """Verify what was given; returns the tokens that the row gets."""
        count, right = int(wanted.counts[self.row]), 0
        while right < count and self.drafts[right] == self.text[self.at + right]:
            right += 1
        for j in range(1, min(right + 1, count) if self.same else 0):
            rates.note(wanted.rates, self.row, self.same + j, float(j < right))
        without = wanted.kept.without_ms
        gained = (1 + right) * without * (1 + worth.SLOWER) - wall_ms
        most = worth.BALANCE_MOST * without
        balance = wanted.balance_ms[self.row] + gained
        wanted.balance_ms[self.row] = min(max(balance, -most), most)
        self.at += 1 + right
        return 1 + right


def gain(texts: Sequence[tuple[Sequence[int], int]], machine: Machine, cap: float = 1.2) -> float:
    """How many times as many tokens a second as without drafts; texts and where each begins."""
    n, cost = len(texts), CostModel.unknown()
    for size in SIZES:
        for _ in range(8):
            learn(cost, 0, size, 0, 0.0, machine.price(size))
    wanted, entered = worth.Wanted.allocate(n), index.Index.allocate(n, 1 << 14)
    lanes, streams = np.zeros(n, np.int32), [Stream(i, *each) for i, each in enumerate(texts)]
    wanted.balance_ms[:] = machine.price(n)
    for row in range(n):
        index.begin(entered, row, row, 0)
    terms, ms, tokens, last, since = wanted.terms, 0.0, 0, n, 2
    terms.rows, terms.room, terms.limit_ms = n, worth.MOST, cap * machine.price(n)
    while all(each.at < each.text.size - END for each in streams):
        for each in streams:
            each.look(entered, wanted)
        size = n + int(worth.choose(wanted, cost, lanes))
        since, last = (0 if size != last else since + 1), size
        wall = machine.price(size) + (machine.change_ms / 2 if since < 2 else 0.0)
        tokens += sum(each.take(wanted, wall) for each in streams)
        worth.note_change(wanted.kept, size, wall)
        ms += wall
    return tokens / ms / (n / machine.price(n))
