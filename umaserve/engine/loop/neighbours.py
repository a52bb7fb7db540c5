"""Background beside other models: it leaves the machine to whoever waits for another engine."""

from __future__ import annotations

import time

import numpy as np

from umaserve.wire import table as t
from umaserve.wire.messages import LANE_INTERACTIVE
from umaserve.wire.states import AUTO_SUNK

# Share of the time for background, as large as the share of tokens that may be late beside
# background of the same model (`umaserve.policy.latency_guard`).  A stream's tokens are late while
# the other engine computes.
SHARE = 0.04
REST_MS = 50  # at most until the next look whether others still wait


class Neighbours:
    """Rests of one engine's background; for the loop's thread, between ticks.

    ``are_awaited``: somebody waits for another engine, as the front has told.
    """

    def __init__(self, table: t.SessionTable) -> None:
        self._table = table
        self._until_ns = 0
        self.are_awaited = False

    @property
    def rest_ms(self) -> int:
        """Return how long no tick is to begin, in ms; 0: one may."""
        if not self.gives_way:
            return 0
        left_ns = self._until_ns - time.monotonic_ns()
        return min(-(-left_ns // 1_000_000), REST_MS) if left_ns > 0 else 0

    def ran(self, began_ns: int) -> None:
        """Note that a tick has ended, or a part of a picture."""
        if self.gives_way:
            now_ns = time.monotonic_ns()
            self._until_ns = now_ns + int((now_ns - began_ns) * (1.0 - SHARE) / SHARE)

    @property
    def gives_way(self) -> bool:
        """Whether others wait for another engine, and nobody for this one."""
        if not self.are_awaited:
            return False
        table = self._table
        at_work = np.isin(table.state, (t.RUNNING, t.WAITING))
        # a prompt without a label that is background for now has somebody who waits for it
        awaited = (table.lane == LANE_INTERACTIVE) | (table.auto == AUTO_SUNK)
        return bool(at_work.any()) and not (at_work & awaited).any()
