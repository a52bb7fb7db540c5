"""Takeover of the prefill worker's finished prompts, between two ticks.

The worker's context holds prompts that were computed beside the ticks.  Their cells are copied into
the loop's context piece by piece.  First tokens that were sampled there are added to their rows.
"""

from __future__ import annotations

import time

import numpy as np

from umaserve.engine.cells import accounting as cells
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.batch import settle
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.samplers.first_token import FirstToken
from umaserve.engine.seats.seats import Seats
from umaserve.engine.seats.trials import Trials
from umaserve.engine.ticks.records import Columns, Work
from umaserve.jit.direct import Direct
from umaserve.sampling.sampler import NO_NUMBERS


class Landing:
    """For the loop's thread; libllama's context is its own meanwhile."""

    def __init__(
        self, setup: Setup, columns: Columns, work: Work, aside: np.ndarray, seats: Seats,
        trials: Trials,
    ) -> None:  # fmt: skip
        self._table, self._control = setup.table, setup.control
        self._columns, self._work, self._aside = columns, work, aside
        self._seats, self._trials = seats, trials
        self._settle = Direct(settle)
        self._slot, self._id = np.zeros(1, np.int32), np.zeros(1, np.int32)

    def take(self, worker: PrefillWorker) -> None:
        """Take over what is finished, as far as it may be copied now."""
        header = self._table.header
        for first in worker.take_first():
            self.settle_first(first)
        if worker.has_pieces:
            landed = worker.land(1)
            header.aside_tokens += landed
            header.prefill_tokens += landed
            header.cells_used = cells.cells_used(self._table)
            if worker.has_pieces:
                self._control.notify()  # the rest after the next tick
        orders = worker.orders
        for log in worker.take_log():
            self._control.send(log)
        if 1 in orders.refused.tobytes():
            self._aside[np.flatnonzero(orders.refused)] = -1

    def settle_first(self, first: FirstToken) -> None:
        """Add a first token that was sampled beside the ticks to its row."""
        table, slot, header = self._table, first.slot, self._table.header
        if first.token == NO_NUMBERS:
            self._trials.accuse([slot])
            return
        self._slot[0], self._id[0] = slot, first.token
        ended = self._settle(
            self._columns, self._work, self._slot, self._id, 1, time.monotonic_ns(), 0,
        )  # fmt: skip
        header.rows_sampled += 1
        header.rows_in_place += first.in_place
        header.copied_bytes += first.copied
        header.sample_ns_total += first.took_ns
        if ended:
            # what was not copied counts as computed all the same
            computed = first.at - int(table.n_past[slot])
            header.aside_tokens += computed
            header.prefill_tokens += computed
            self._seats.end(slot, int(table.reason[slot]))
        self._control.wake()
