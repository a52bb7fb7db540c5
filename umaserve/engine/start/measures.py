"""Measurements on the engine's context: what ticks and chunks cost, and how fast memory is.

Each method is a sequence of short steps, for pauses in which no row runs.  What a start cannot
measure for want of a pause is learned from the requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from umaserve.engine.model.loaded import Setup
from umaserve.engine.prefill.second_context import SLOW_CHUNK_MS, measure_slices
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel
from umaserve.policy.cost.prediction import predict
from umaserve.policy.processor.slices import SLICED_CHUNK

from .bandwidth_probe import probe_bandwidth
from .bare_ticks import BareTicks, depth
from .probe import LONGEST_MS, QUIETER, Prober

BANDWIDTH_S = 0.05
# Sizes of ticks that are computed once on an accelerator, where the first of a size is slow.  The
# driver loads or compiles a kernel when it is first wanted, and buffers grow with the largest tick.
# The costs of ticks may be known from an earlier start; kernels never are.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64)
PROMPTS = (16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048)
TIMES = 2  # a graph is kept from its second use on, where the driver keeps graphs

Steps = Iterator[None]


class Measures:
    """``n_rows``: most rows that decode in a tick."""

    def __init__(self, setup: Setup, cost: CostModel, beside: PrefillWorker, n_rows: int) -> None:
        self._setup, self._cost, self._beside, self._n_rows = setup, cost, beside, n_rows
        self._words = setup.table.abort
        self._prober = Prober(setup.loaded, cost, self._words)
        # of a lone token, when costs were first measured; 0 where they are not measured again
        self._lone_ms = math.nan if setup.loaded.on_processor else 0.0
        self._met: set[tuple[int, int]] = set()

    @property
    def were_disturbed(self) -> bool:
        """Whether a lone token takes less by now than when costs were first measured.

        It is not asked of an accelerator, whose clocks are slow in pauses, nor a second time.
        """
        return 0.0 < self._cost.mean[0, 1, 0] < QUIETER * self._lone_ms

    def begin_again(self) -> None:
        """Measure costs once more."""
        self._lone_ms = 0.0
        self._prober = Prober(self._setup.loaded, self._cost, self._words)

    def bandwidth(self, budget: Budget) -> Steps:
        """Where the automatic budget of bytes starts; what ticks achieve moves it."""
        start, loaded = self._setup.start, self._setup.loaded
        if start.probe and start.bmt_budget == "auto" and loaded.on_processor:
            size = loaded.model.size_bytes
            budget.start_at(probe_bandwidth(BANDWIDTH_S, loaded.n_threads, size) or 0.0)
            yield

    def meet(self) -> Steps:
        """On an accelerator: ticks of every size once, since the first of a size is slow."""
        loaded = self._setup.loaded
        if loaded.on_processor or not self._setup.start.probe:
            return
        most = min(loaded.n_batch, loaded.n_ctx // 2, loaded.n_positions)
        sequences = min(loaded.n_seq, most // (depth(loaded) + 1))
        n_rows = self._n_rows if sequences == loaded.n_seq else sequences
        ticks = BareTicks(loaded, self._words)
        try:
            yield from meet_shapes(ticks, n_rows, most, self._met)
        finally:
            ticks.close()

    def costs(self) -> Steps:
        """Ticks of many shapes."""
        if self._setup.start.probe:
            yield from self._prober.steps(self._beside.threads, n_rows=self._n_rows)
            if math.isnan(self._lone_ms):
                self._lone_ms = float(self._cost.mean[0, 1, 0])

    def slices(self) -> Steps:
        """Chunks between the ticks of a processor, where the smallest is no long one."""
        start, worker = self._setup.start, self._beside
        if not worker.sliced or not start.probe:
            return
        if self._cost.parts[CHUNK_SIZES <= SLICED_CHUNK].any():
            return  # use will tell about the others
        if 0.0 < predict(self._cost, 0, 0, int(CHUNK_SIZES[0]), 0) <= SLOW_CHUNK_MS:
            yield from measure_slices(
                self._setup.loaded, start, worker.orders.gate, self._cost, self._words
            )


def meet_shapes(
    ticks: BareTicks, n_rows: int, most: int, met: set[tuple[int, int]]
) -> Iterator[None]:
    """A tick a step: each of ``ROWS`` up to ``n_rows``, each of ``PROMPTS`` up to ``most`` tokens.

    What is in ``met`` is left out, and what has been computed is added to it, so that the steps may
    end early.  A prompt that should take more than LONGEST_MS is left out as well.
    """
    for rows in ROWS:
        if rows <= n_rows and (rows, 0) not in met:
            yield from _meet(ticks, rows, 0, [])
            met.add((rows, 0))
    token_ms = 0.0
    for prompt in PROMPTS:
        if prompt > most or token_ms * prompt > LONGEST_MS:
            return
        if (0, prompt) in met:
            continue
        taken: list[float] = []
        yield from _meet(ticks, 0, prompt, taken)
        met.add((0, prompt))
        token_ms = min(taken, default=0.0) / prompt


def _meet(ticks: BareTicks, rows: int, prompt: int, taken: list[float]) -> Iterator[None]:
    for _ in range(TIMES):
        taken.append(ticks.measure(rows, prompt))
        yield
