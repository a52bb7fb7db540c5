"""The front's clock, which stands still while the front does not run.

A suspended laptop or a SIGSTOP stops the children too.  What they did not do meanwhile says
nothing about them, so no time limit of the front's counts it.
"""

from __future__ import annotations

import time

import trio

LOOK_S = 2.0  # the front's own pulse: the longest sleep of its loop
AWAY_S = 3.0  # between two looks at the clock: longer ones are time without the front


class AwakeClock(trio.abc.Clock):
    """``resumed_ns`` is when the front last went on, by ``time.monotonic_ns()``; 0: never."""

    def __init__(self) -> None:
        self.resumed_ns = 0
        self._looked_ns = time.monotonic_ns()
        self._away_ns = 0

    def start_clock(self) -> None:
        self._looked_ns = time.monotonic_ns()

    def current_time(self) -> float:
        now_ns = time.monotonic_ns()
        gone_ns = now_ns - self._looked_ns
        if gone_ns > AWAY_S * 1e9:
            self._away_ns += gone_ns
            self.resumed_ns = now_ns
        self._looked_ns = now_ns
        return (now_ns - self._away_ns) / 1e9

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(deadline - self.current_time(), LOOK_S)


def resumed_ns() -> int:
    """When the front last went on after it had not run, by ``time.monotonic_ns()``; 0: never."""
    clock = trio.lowlevel.current_clock()
    return clock.resumed_ns if isinstance(clock, AwakeClock) else 0
