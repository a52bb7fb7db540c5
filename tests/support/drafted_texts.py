"""What drafts are worth on a text, on a machine whose ticks cost what is said here.

The index, the rates and the choice are the engine's own.  The text is known in advance, so a draft
is right where it is the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from umaserve.drafts import balance, index, pace, rates, worth
from umaserve.drafts.wanted import MOST, MOST_EACH, Wanted
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
        self.drafts = np.zeros(MOST_EACH, np.int32)

    def look(self, texts: index.Index, wanted: Wanted) -> None:
        row, n = self.row, self.at
        run = 0
        if 0 < self.found_at < n:
            was_right = self.drafts[0] == self.text[self.found_at]
            rates.note(wanted.rates, row, self.same, float(was_right))
            run = wanted.run[row] + 1 if was_right else 0
        wanted.run[row] = run
        while not index.keep_up(texts, row, self.text, n):
            pass
        place, self.same = index.find(texts, row, self.text, n)
        wanted.rows[row], wanted.most[row], wanted.same[row] = row, MOST_EACH, self.same
        place = place if self.same else max(n - MOST_EACH, 0)
        index.copy_on(self.text, n, place, self.drafts, MOST_EACH)
        self.found_at = n if self.same else 0

    def take(self, wanted: Wanted, wall_ms: float) -> int:
        """Verify what was given; returns the tokens that the row gets."""
        count, right = int(wanted.counts[self.row]), 0
        while right < count and self.drafts[right] == self.text[self.at + right]:
            right += 1
        for j in range(1, min(right + 1, count) if self.same else 0):
            rates.note(wanted.rates, self.row, self.same + j, float(j < right))
        balance.settle_balance.py_func(wanted, self.row, 1 + right, wall_ms)
        self.at += 1 + right
        return 1 + right


def gain(texts: Sequence[tuple[Sequence[int], int]], machine: Machine, cap: float = 1.2) -> float:
    """How many times as many tokens a second as without drafts; texts and where each begins."""
    n, cost = len(texts), CostModel.unknown()
    for size in SIZES:
        for _ in range(8):
            learn(cost, 0, size, 0, 0.0, machine.price(size))
    wanted, entered = Wanted.allocate(n), index.Index.allocate(n, 1 << 14)
    lanes, streams = np.zeros(n, np.int32), [Stream(i, *each) for i, each in enumerate(texts)]
    wanted.balance_ms[:] = machine.price(n)
    for row in range(n):
        index.begin(entered, row, row, 0)
    terms, ms, tokens, last, since = wanted.terms, 0.0, 0, n, 2
    terms.rows, terms.room, terms.limit_ms = n, MOST, cap * machine.price(n)
    while all(each.at < each.text.size - END for each in streams):
        for each in streams:
            each.look(entered, wanted)
        given = int(worth.choose(wanted, cost, lanes))
        size = n + given
        since, last = (0 if size != last else since + 1), size
        wall = machine.price(size) + (machine.change_ms / 2 if since < 2 else 0.0)
        got = sum(each.take(wanted, wall) for each in streams)
        tokens += got
        pace.note_pace(wanted.kept, n, got, wanted.kept.price_ms)
        pace.note_change(wanted.kept, size, wall)
        wanted.kept.given = given
        ms += wall
    return tokens / ms / (n / machine.price(n))
