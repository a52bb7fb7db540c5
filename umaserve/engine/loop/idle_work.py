"""Measurements of an engine while there are no requests, so that none waits for them.

A start serves at once.  The cost of ticks and chunks here, and whether some extras pay, is measured
in the pauses between requests, one short step at a time.  Between two steps the loop looks whether
a request has come.  On a processor an interactive request also gives up the step that is under way
(`abort`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator

from umaserve.engine.model.costs.cost_keeper import CostKeeper
from umaserve.engine.model.loaded import Setup
from umaserve.engine.seats.seats import Seats
from umaserve.engine.start.measures import Measures, Steps
from umaserve.engine.start.thread_choice import ThreadLooks
from umaserve.engine.ticks.records import Flight
from umaserve.heap import trim_heap
from umaserve.llama.errors import LlamaError
from umaserve.wire import messages as m


class IdleWork:
    """The measurements that are ``left``; for the loop's thread, while no row runs or waits."""

    def __init__(
        self, setup: Setup, seats: Seats, flight: Flight, keeper: CostKeeper, looks: ThreadLooks,
        measures: Measures, left: list[Callable[[], Steps]],
    ) -> None:  # fmt: skip
        self._setup, self._seats, self._flight, self._keeper = setup, seats, flight, keeper
        self._looks, self._measures = looks, measures
        self._steps: Steps | None = None
        self._left = left

    @property
    def is_left(self) -> bool:
        due = time.monotonic() >= self._looks.again_s
        return bool(self._left) or due or self._measures.were_disturbed

    def step(self) -> None:
        """Do the next short piece of work."""
        if not self._left and self._measures.were_disturbed:
            self._measures.begin_again()
            self._left = [self._measures.costs, self._measures.slices]
            self._keeper.disbelieve()
        elif not self._left:
            self._left, self._looks.again_s = [self._looks.look, self._measures.costs], math.inf
        if self._steps is None:
            self._seats.free_held()
            self._steps = self._left[0]()
        try:
            ended = next(self._steps, self) is self
        except LlamaError as error:  # no memory for a second context, say
            text = f"something is not measured, use will tell it: {error}"
            self._setup.control.send(m.Log("warn", text))
            ended = True
        if ended:
            self._left.pop(0)
            self.give_way()
            if not self._left:
                self._keeper.learned()
                if not self._setup.start.pretouch:
                    trim_heap()

    def give_way(self) -> None:
        """Somebody comes: leave an empty cache behind.  What was begun begins anew later."""
        if self._steps is None:
            return
        if isinstance(self._steps, Generator):
            self._steps.close()
        self._steps = None
        self._setup.loaded.context.clear()
        self._seats.sequences.clear()
        self._flight.mode = 0

    def finish(self) -> None:
        """Do all that is left at once."""
        while self.is_left:
            self.step()
