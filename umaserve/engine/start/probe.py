"""A few ticks of each shape that nobody has measured, so that the policy need not guess.

Ticks of several rows that an earlier run measured are measured once more.  Other programs may have
run then.  What seems to take long is not used, so no request would correct it.

All are computed while nobody asks for anything, one tick a step (`idle_work`).  What is left out is
learned from real ticks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from umaserve.engine.model.loaded import Loaded
from umaserve.policy.cost.model import FADED, ROW_EDGES, CostModel, at_fill, learn
from umaserve.policy.cost.prediction import is_known, predict
from umaserve.wire.header import AbortWords

from .bare_ticks import BareTicks, depth

PROBE_S = 4.0  # spent in all by one engine
LONGEST_MS = 500.0  # no tick of the probe is expected to take longer
QUICK_MS = 20.0  # ticks below this are repeated: a shape's first ones pay for kernels and buffers
TIMES, QUICK_TIMES = 2, 8
BELIEVED = 2  # as often as it takes to believe a shape
QUIETER = 0.8  # of the time that a tick was measured to take: others ran then
# (mode, rows, prompt tokens), in order of importance; mode 1: cores compute prompts beside it
SHAPES = (
    (0, 1, 0), (0, 0, 16), (0, 0, 1), (0, 0, 64), (1, 1, 0), (0, 2, 0), (0, 8, 0), (0, 4, 0),
    (0, 1, 1), (0, 1, 8), (0, 1, 16), (0, 1, 4), (0, 0, 8), (0, 3, 0), (0, 6, 0), (0, 16, 0),
    (0, 0, 32), (0, 0, 128), (0, 0, 4), (0, 0, 256), (0, 0, 512), (0, 1, 32), (0, 1, 64),
    (0, 1, 128), (0, 1, 2), (0, 1, 256), (1, 2, 0), (1, 8, 0), (1, 4, 0), (0, 5, 0), (0, 7, 0),
    (0, 32, 0), (0, 12, 0), (0, 24, 0), (0, 64, 0), (0, 4, 8), (0, 4, 32), (0, 4, 64), (0, 8, 8),
    (0, 8, 32), (0, 8, 64),
)  # fmt: skip
PLAIN_SHAPES = tuple(shape for shape in SHAPES if shape[0] == 0)


class Prober:
    """Measures shapes and `learn`s them, the most telling first; ``words`` as `BareTicks`."""

    def __init__(self, loaded: Loaded, cost: CostModel, words: AbortWords) -> None:
        self._loaded, self._n_rows = loaded, loaded.n_seq
        self._cost = cost
        self._words = words
        self._spent_s = 0.0
        self._confirmed: set[int] = set()  # numbers of rows that were measured once more

    def steps(
        self, aside_threads: int, seconds: float = PROBE_S, n_rows: int = 0
    ) -> Iterator[None]:
        """Measure a tick for each value taken, until all shapes are known or ``seconds`` are spent.

        ``n_rows``: most rows that decode, if more than the sequences: each draft is a row too.
        The generator may be closed after any tick; the next generator measures the other shapes.
        """
        loaded = self._loaded
        self._n_rows = max(loaded.n_seq, n_rows)
        most = min(loaded.n_batch, loaded.n_ctx // 2, loaded.n_positions)
        ticks = BareTicks(loaded, self._words)
        try:
            for mode, rows, prompt in SHAPES if aside_threads else PLAIN_SHAPES:
                if self._is_wanted(mode, rows, prompt, most, seconds):
                    ticks.threads(*loaded.threads(aside_threads if mode else 0))
                    yield from self._learn(ticks, mode, rows, prompt)
        finally:
            ticks.close()

    def _is_wanted(self, mode: int, rows: int, prompt: int, most: int, seconds: float) -> bool:
        """Whether a shape is unknown, possible here, and not too long for the time that is left."""
        loaded, cost = self._loaded, self._cost
        sequences = min(rows, loaded.n_seq)
        spare = loaded.n_ctx - (sequences + 1) * (depth(loaded) + 1) - (rows - sequences) - prompt
        if rows > self._n_rows or prompt > most - rows or spare < 0:
            return False
        if is_known(cost, mode, rows, prompt) and not self._is_doubted(mode, rows, prompt):
            return False
        expected = predict(cost, mode, rows, prompt, 0) or predict(cost, 0, rows, prompt, 0)
        return expected <= LONGEST_MS and self._spent_s + TIMES * expected / 1000.0 <= seconds

    def _is_doubted(self, mode: int, rows: int, prompt: int) -> bool:
        """Whether the cost of several rows is of an earlier run, or was not used for long."""
        several = mode == 0 and rows > 1 and prompt == 0 and rows not in self._confirmed
        return several and self._cost.count[_decoders(rows)] <= FADED

    def _learn(self, ticks: BareTicks, mode: int, rows: int, prompt: int) -> Iterator[None]:
        """Measure one shape some times; nothing is learned where the library refuses it."""
        taken: list[float] = []
        while len(taken) < (QUICK_TIMES if taken and min(taken) < QUICK_MS else TIMES):
            began = time.monotonic()
            wall_ms = ticks.measure(rows, prompt)
            self._spent_s += time.monotonic() - began
            yield
            if wall_ms <= 0.0:
                return
            taken.append(wall_ms)
        past, typical = depth(self._loaded) * rows / (rows + prompt), _typical(taken)
        if is_known(self._cost, mode, rows, prompt):
            self._confirmed.add(rows)
            place = _decoders(rows)
            # A prediction is capped while its shape is doubted.
            if typical >= QUIETER * at_fill(self._cost, *place, rows, prompt, past):
                return
            self._cost.count[place] = 0.0
        for _ in range(BELIEVED):
            learn(self._cost, mode, rows, prompt, past, typical)


def _decoders(rows: int) -> tuple[int, int, int]:
    """Place of a tick of so many decoding rows in the arrays of a CostModel."""
    return 0, int(np.searchsorted(ROW_EDGES, rows)), 0


def _typical(taken: list[float]) -> float:
    """The wall time that stands for a shape: the first ones pay for kernels and buffers."""
    if len(taken) == TIMES:
        return min(taken)
    later = sorted(taken[len(taken) // 2 :])
    return later[len(later) // 2]
