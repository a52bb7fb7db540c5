"""Turns of rows with different adapters: a decode has rows with equal ones alone.

A context computes with one set of adapters, and libllama reserves its buffers anew where that
changes.  So rows with another set pause, for many ticks, and keep their cells.  Where each row has
the set of the start, nothing is done here.
"""

from __future__ import annotations

import time

import numpy as np

from umaserve.engine.model.adapters import domain_of
from umaserve.engine.model.loaded import Setup
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.ticks.beside import UNLIKE
from umaserve.engine.ticks.records import Flight
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.states import NOT_FED

Scales = tuple[float, ...]
TURN_S, BACKGROUND_TURN_S = 0.2, 0.05  # of a set while rows with another one wait
TICKS = 8  # between two looks at the time
ALWAYS = 1 << 30  # ticks that are unlike those whose costs are learned


class AdapterTurns:
    """For the loop's thread, between ticks.  ``is_on``: a row has another set than the start.

    ``aside`` is the policy's column, in which a row that pauses is marked as not fed.
    """

    def __init__(
        self, setup: Setup, aside: np.ndarray, flight: Flight, beside: PrefillWorker
    ) -> None:
        self._table, self._context = setup.table, setup.loaded.context
        self._sets, self._aside = setup.loaded.adapters, aside
        self._flight, self._beside = flight, beside
        self._now = self._sets.home  # the set of the context
        self._of: dict[int, Scales] = {}  # sets of rows, by slot
        # when the last turn of a set ended, or since when it waits for its first
        self._ends: dict[Scales, float] = {}
        self._began_s = 0.0
        self.is_on = self.is_shared = False

    def arrive(self, slot: int, message: m.Submit) -> str | None:
        """A request has got a row; returns the trust domain of its text."""
        if not self._sets:
            return message.domain
        self._of[slot] = self._sets.scales(message.lora)
        return domain_of(message.domain, self._sets.digests, self._of[slot])

    def scales(self, slot: int) -> Scales:
        """Return the adapters of a row."""
        return self._of.get(slot, self._sets.home)

    def is_paused(self, slot: int) -> bool:
        """Whether a running row waits for its turn."""
        return self.is_on and self.scales(slot) != self._now

    def begin(self, slot: int) -> None:
        """A row runs from now on, or waits for its turn to."""
        self.is_on = self.is_on or self.scales(slot) != self._now
        if self.is_on:
            self._ends.setdefault(self.scales(slot), time.monotonic())
            self._aside[slot] = NOT_FED if self.is_paused(slot) else -1

    def step(self) -> None:
        """Give the next set its turn, if that is due."""
        if not self.is_on:
            return
        table, home = self._table, self._sets.home
        running = np.flatnonzero(table.state == t.RUNNING).tolist()
        sets = {self.scales(slot) for slot in running}
        self.is_on, self.is_shared = bool(sets - {home}), len(sets) > 1
        if not self.is_on:
            self._change(home, running)
        elif self._now not in sets or self.is_shared and self._is_over(running):
            now_s = time.monotonic()
            others = sets - {self._now}
            self._change(min(others, key=lambda each: self._ends.get(each, now_s)), running)
        if self.is_on:  # others have a say in this column too
            self._aside[[s for s in running if self.is_paused(s)]] = NOT_FED
        if self._now != home:
            self._flight.unlike = ALWAYS

    def ticks(self, most: int) -> int:
        """Return how many ticks may run before the next `step`: a prompt's may be long."""
        if not self.is_shared:
            return most
        table = self._table
        prompts = np.flatnonzero((table.state == t.RUNNING) & (table.n_tokens - table.n_past > 1))
        return 1 if any(not self.is_paused(slot) for slot in prompts.tolist()) else TICKS

    def _is_over(self, running: list[int]) -> bool:
        lanes = [self._table.lane[s] for s in running if self.scales(s) == self._now]
        limit_s = TURN_S if m.LANE_INTERACTIVE in lanes else BACKGROUND_TURN_S
        return time.monotonic() >= self._began_s + limit_s

    def _change(self, scales: Scales, running: list[int]) -> None:
        """Have the context compute with another set; rows with other ones pause."""
        aside = self._aside
        now_s = self._began_s = self._ends[self._now] = time.monotonic()
        self._ends = {each: self._ends.get(each, now_s) for each in map(self.scales, running)}
        self._now = scales
        self._sets.set(self._context, scales)
        self._flight.unlike = UNLIKE
        for slot in running:
            if aside[slot] == 1:
                self._beside.reclaim(slot)  # it would go on while its row pauses
            aside[slot] = NOT_FED if self.scales(slot) != scales else -1
