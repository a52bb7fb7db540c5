"""Time of the front, which no program can take from the others.

A program is a process that connects (`Sink.program`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from umaserve.budget import Budget
from umaserve.heap import trim_heap

SHARE = 0.1  # of the front's time, for what one program sends
BURST_S = 0.005  # that it may use at once
CONNECTION_S = 0.0004  # to set a connection's tasks up and to end them
TRIM_BYTES, TRIM_PARTS = 8 * 1024 * 1024, 8
LONGEST_DEBT_S = 0.2  # so far behind at most: nobody waits for more than two seconds


class FrameBudget(Budget):
    """Bytes of frames.  When most of many are gone, the C library returns what it keeps of them."""

    _most_held = 0  # since then

    def change(self, program: Hashable, amount: int) -> None:
        super().change(program, amount)
        self._most_held = max(self._most_held, self._total)
        if self._most_held > TRIM_BYTES > TRIM_PARTS * self._total:
            self._most_held = self._total
            trim_heap()


class FrontTime:
    """Time of the front that programs use: a token bucket for each.

    ``clock`` gives seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._debts: dict[Hashable, tuple[float, float]] = {}  # seconds owed, and as of when

    def used(self, program: Hashable, seconds: float) -> None:
        """Charge ``program`` with the ``seconds`` that the handling of its messages took."""
        now_s = self._clock()
        owed = min(self._owed(program, now_s) + seconds, LONGEST_DEBT_S)
        self._debts[program] = (owed, now_s)
        if len(self._debts) > 4096:  # long gone, most of them
            self._debts = {p: d for p, d in self._debts.items() if self._owed(p, now_s)}

    def wait_s(self, program: Hashable) -> float:
        """How long nothing more of ``program`` is to be handled."""
        over = self._owed(program, self._clock()) - BURST_S
        return max(over, 0.0) / SHARE

    def _owed(self, program: Hashable, now_s: float) -> float:
        owed, as_of_s = self._debts.get(program, (0.0, now_s))
        return max(owed - SHARE * (now_s - as_of_s), 0.0)
