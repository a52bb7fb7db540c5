"""Measurements of an engine while there are no requests, so that none waits for them.

A start serves at once.  The cost of ticks and chunks here, and whether some extras pay, is measured
in the pauses between requests, one short step at a time.  Between two steps the loop looks whether
a request has come.  On a processor an interactive request also gives up the step that is under way
(`abort`).  Costs that are never measured for want of a pause are learned from the requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator

from umaserve.drafts.wanted import MOST
from umaserve.engine.model.thread_places import leave_places, place_threads
from umaserve.engine.prefill.second_context import SLOW_CHUNK_MS, measure_slices
from umaserve.engine.start.bandwidth_probe import probe_bandwidth
from umaserve.engine.start.bare_ticks import BareTicks, depth
from umaserve.engine.start.first_use import meet_shapes
from umaserve.engine.start.probe import Prober
from umaserve.engine.start.thread_choice import BATCH_PROMPT, choose
from umaserve.engine.start.whole import Whole
from umaserve.heap import trim_heap
from umaserve.llama.errors import LlamaError
from umaserve.policy.cost.model import CHUNK_SIZES, predict
from umaserve.policy.processor.slices import SLICED_CHUNK
from umaserve.wire import messages as m

BANDWIDTH_S = 0.05
AGAIN_S = 10.0  # after which threads are looked at again where a look has found fewer
# the same where fewer have been taken: what took the cores may have ended.  Each look doubles it
DOUBT_S = 30.0
QUIETER = 0.8  # of the measured time of a lone token: others ran when it was measured

Steps = Iterator[None]


class IdleWork:
    """The measurements that are left; for the loop's thread, while no row runs or waits."""

    def __init__(self, engine: Whole) -> None:
        self._engine = engine
        self._steps: Steps | None = None
        self._probed = engine.loaded, engine.cost, engine.table.abort
        self._prober = Prober(*self._probed)
        # of a lone token, when costs were first measured; 0 where they are not measured again
        self._lone_ms = math.nan if engine.loaded.on_processor else 0.0
        self._met: set[tuple[int, int]] = set()
        self._most = engine.loaded.n_threads
        self._found: tuple[int, int] | None = None  # threads that the last look has found
        self._again_s, self._doubt_s = math.inf, DOUBT_S  # when these are looked at again
        self._left: list[Callable[[], Steps]] = [
            self._threads, self._bandwidth, self._meet, self._graph, self._probe, self._slices,
        ]  # fmt: skip

    @property
    def _n_rows(self) -> int:
        """Most rows that decode in a tick.  On an accelerator drafts are rows too: what they cost
        is known before somebody pays for them."""
        engine = self._engine
        drafts = MOST if engine.ways.overlaps and engine.can_draft else 0
        return max(engine.loaded.n_seq, drafts)

    @property
    def is_left(self) -> bool:
        return bool(self._left) or time.monotonic() >= self._again_s or self._was_disturbed

    @property
    def _was_disturbed(self) -> bool:
        """Whether a lone token takes less by now than when costs were first measured.

        It is not asked of an accelerator, whose clocks are slow in pauses, nor a second time.
        """
        return 0.0 < self._engine.cost.mean[0, 1, 0] < QUIETER * self._lone_ms

    def step(self) -> None:
        """Do the next short piece of work."""
        if not self._left and self._was_disturbed:
            self._lone_ms, self._left = 0.0, [self._probe, self._slices]
            self._engine.cost_keeper.disbelieve()
            self._prober = Prober(*self._probed)
        elif not self._left:
            self._left, self._again_s = [self._threads, self._probe], math.inf
        if self._steps is None:
            self._engine.seats.free_held()
            self._steps = self._left[0]()
        try:
            ended = next(self._steps, self) is self
        except LlamaError as error:  # no memory for a second context, say
            text = f"something is not measured, use will tell it: {error}"
            self._engine.control.send(m.Log("warn", text))
            ended = True
        if ended:
            self._left.pop(0)
            self.give_way()
            if not self._left:
                self._engine.cost_keeper.learned()
                if not self._engine.start.pretouch:
                    trim_heap()

    def give_way(self) -> None:
        """Somebody comes: leave an empty cache behind.  What was begun begins anew later."""
        if self._steps is None:
            return
        if isinstance(self._steps, Generator):
            self._steps.close()
        self._steps = None
        engine = self._engine
        engine.loaded.context.clear()
        engine.sequences.clear()
        engine.work.flight.mode = 0

    def finish(self) -> None:
        """Do all that is left at once."""
        while self.is_left:
            self.step()

    # --- the pieces -----------------------------------------------------------------------------

    def _threads(self) -> Steps:
        """Choose the numbers of CPU threads that are fastest, for one token and for more.

        A start is often a busy moment, say while others start too.  So fewer than all are taken if
        they are faster another time as well.  One look in a pause `DOUBT_S` later, and then ever
        more rarely, is enough to have all of them again.
        """
        engine, loaded, most = self._engine, self._engine.loaded, self._most
        if engine.start.n_threads or not loaded.on_processor or most < 2:
            return
        ticks = BareTicks(loaded, engine.table.abort)
        try:
            one = yield from choose(ticks, most, rows=1, prompt=0)
            prompt = min(BATCH_PROMPT, loaded.n_batch, loaded.n_positions)
            more = yield from choose(ticks, most, rows=0, prompt=prompt)
        finally:
            ticks.close()
        former, self._found = self._found or (most, most), (one, more)
        now_s = time.monotonic()
        if min(one, more) < most:
            self._again_s = now_s + AGAIN_S
        one, more = max(one, former[0]), max(more, former[1])
        if min(one, more) < most:
            self._again_s, self._doubt_s = now_s + self._doubt_s, 2.0 * self._doubt_s
        if (one, more) == (loaded.n_threads, loaded.n_threads_batch):
            return
        loaded.n_threads, loaded.n_threads_batch = one, more
        loaded.context.set_threads(one, more)
        if loaded.draft is not None:
            loaded.draft.context.set_threads(one, more)
        leave_places(loaded.places)  # one thread alone needs none
        place_threads(loaded.places, max(one, more))
        engine.arrange()
        engine.cost.forget()
        engine.recall_costs()
        engine.control.send(m.Threads(one, more))

    def _bandwidth(self) -> Steps:
        """Where the automatic budget of bytes starts; what ticks achieve moves it."""
        engine, loaded = self._engine, self._engine.loaded
        if engine.start.probe and engine.start.bmt_budget == "auto" and loaded.on_processor:
            size = loaded.model.size_bytes
            engine.budget.start_at(probe_bandwidth(BANDWIDTH_S, loaded.n_threads, size) or 0.0)
            yield

    def _meet(self) -> Steps:
        """On an accelerator: ticks of every size once, since the first of a size is slow."""
        engine, loaded = self._engine, self._engine.loaded
        if loaded.on_processor or not engine.start.probe:
            return
        most = min(loaded.n_batch, loaded.n_ctx // 2, loaded.n_positions)
        sequences = min(loaded.n_seq, most // (depth(loaded) + 1))
        n_rows = self._n_rows if sequences == loaded.n_seq else sequences
        ticks = BareTicks(loaded, engine.table.abort)
        try:
            yield from meet_shapes(ticks, n_rows, most, self._met)
        finally:
            ticks.close()

    def _probe(self) -> Steps:
        engine = self._engine
        if engine.start.probe:
            yield from self._prober.steps(engine.beside.threads, n_rows=self._n_rows)
            if math.isnan(self._lone_ms):
                self._lone_ms = float(engine.cost.mean[0, 1, 0])

    def _slices(self) -> Steps:
        """Chunks between the ticks of a processor, where the smallest is no long one."""
        engine, worker = self._engine, self._engine.beside.worker
        if worker is None or not worker.sliced or not engine.start.probe:
            return
        if engine.cost.parts[CHUNK_SIZES <= SLICED_CHUNK].any():
            return  # use will tell about the others
        if 0.0 < predict(engine.cost, 0, 0, int(CHUNK_SIZES[0]), 0) <= SLOW_CHUNK_MS:
            yield from measure_slices(
                engine.loaded, engine.start, worker.orders.gate, engine.cost, engine.table.abort
            )

    def _graph(self) -> Steps:
        return self._engine.graph.measure()
