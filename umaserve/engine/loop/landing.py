"""What the prefill worker has finished, taken over between two ticks.

Its context holds prompts that were computed beside the ticks.  Their cells are copied into the
loop's context piece by piece, and first tokens that were sampled there are added to their rows.
"""

from __future__ import annotations

import time

import numpy as np

from umaserve.engine.cells import accounting as cells
from umaserve.engine.native.batch import settle
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.samplers.first_token import FirstToken
from umaserve.engine.start.whole import Whole
from umaserve.jit.direct import Direct
from umaserve.policy.accelerator.beside import AT_ONCE, may_land
from umaserve.policy.latency_guard import FAR_MS, poorest
from umaserve.sampling.sampler import NO_NUMBERS
from umaserve.wire import messages as m

from .beside import UNLIKE

LANDING_SHARE = 1.0  # of the baseline that copying a piece may take while streams decode


class Landing:
    """For the loop's thread; libllama's context is its own meanwhile."""

    def __init__(self, engine: Whole) -> None:
        self._engine = engine
        self._settle, self._poorest = Direct(settle), Direct(poorest)
        self._lands = Direct(may_land)
        self._slot, self._id = np.zeros(1, np.int32), np.zeros(1, np.int32)

    def take(self, worker: PrefillWorker) -> None:
        """Take over what is finished, as far as it may be copied now."""
        engine, header, landed = self._engine, self._engine.table.header, 0
        for first in worker.take_first():
            self.settle_first(first)
        if worker.has_pieces and (not engine.paced or self._may_land(worker)):
            someone_waits = engine.paced and worker.first_lane == m.LANE_INTERACTIVE
            landed = worker.land(AT_ONCE if someone_waits else 1)
            header.aside_tokens += landed
            header.prefill_tokens += landed
            header.cells_used = cells.cells_used(engine.table)
            if engine.paced and landed:
                engine.work.flight.unlike = UNLIKE
            if worker.has_pieces and not engine.paced:
                engine.control.notify()  # the rest after the next tick
        orders = worker.orders
        if landed or orders.pending[0] < 0:
            orders.pending_ns[0] = time.monotonic_ns()
        orders.pending[0] = worker.first_lane
        for log in worker.take_log():
            engine.control.send(log)
        if 1 in orders.refused.tobytes():
            engine.work.aside[np.flatnonzero(orders.refused)] = -1

    def settle_first(self, first: FirstToken) -> None:
        """Add a first token that was sampled beside the ticks to its row."""
        engine, table, work, slot = self._engine, self._engine.table, self._engine.work, first.slot
        header = table.header
        if first.token == NO_NUMBERS:
            engine.trials.accuse([slot])
            return
        self._slot[0], self._id[0] = slot, first.token
        ended = self._settle(
            engine.columns, work, self._slot, self._id, 1, time.monotonic_ns(), 0,
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
            engine.seats.end(slot, int(table.reason[slot]), empty=not table.n_past[slot])
        engine.control.wake()

    def _may_land(self, worker: PrefillWorker) -> bool:
        """Whether a piece may be copied now where that makes interactive tokens late."""
        engine = self._engine
        baseline_ms = engine.table.header.baseline_ns / 1e6
        if self._poorest(engine.state) < FAR_MS and baseline_ms > 0.0:  # a stream decodes
            worker.limit_pieces(LANDING_SHARE * baseline_ms)
            worker.recall_large()
        else:
            worker.limit_pieces(float("inf"))
        waited_ms = (time.monotonic_ns() - int(worker.orders.pending_ns[0])) / 1e6
        return bool(self._lands(engine.state, worker.first_lane, waited_ms))
