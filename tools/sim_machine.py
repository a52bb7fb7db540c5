"""Oracle costs: what a tick really takes on a machine that the simulator plays.

A tick of ``rows`` decoding rows and ``prompt`` prompt tokens takes what a graph of that many tokens
takes, and something for the rows' logits and attention.  Two modes: all threads, or a prompt beside
the ticks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from umaserve.engine.start.bare_ticks import PAST
from umaserve.engine.start.probe import LONGEST_MS, PLAIN_SHAPES, PROBE_S, SHAPES, TIMES
from umaserve.jit.compiled import njit
from umaserve.policy.base import ALL_FEATURES, FEATURES, Knobs
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel, learn
from umaserve.policy.cost.prediction import is_known, predict

MOST = 8192  # tokens of a tick that the tables reach
_NONE = np.zeros(MOST + 1)


class Machine(NamedTuple):
    """Milliseconds; all arrays owned by this tuple.

    ``graph``: float64[2, MOST + 1], by mode and tokens; ``row``: float64[2, MOST + 1], what so many
    decoding rows cost beyond prompt tokens; ``first`` float64[2, MOST + 1]: one row with so many
    prompt tokens, where it was measured, else 0.  ``kv_ms``: per token and thousand KV cells
    that it attends to; ``wide_reads``: these are all in use, not a sequence's own.  ``noise``:
    standard deviation of a tick over its mean; ``outliers``: share of ticks that take ``outlier``
    times as long.  ``aside_per_s``: prompt tokens per second beside the ticks, 0 = the machine
    cannot.  ``chunk_ms``, ``part_ms``: float64, by ``CHUNK_SIZES``, all parts and the longest part
    of a chunk that is computed in slices between ticks; 0 = the machine has no slices.

    ``overlaps``: an accelerator, of which the first and the second tick of another shape take
    ``changed_ms`` more.  ``alone`` float64[MOST + 1]: what ticks of so many rows take, which are a
    graph of their own; 0 = they are none.
    """

    graph: np.ndarray
    row: np.ndarray
    first: np.ndarray
    kv_ms: float
    noise: float
    outliers: float
    outlier: float
    aside_per_s: float
    abortable: bool
    wide_reads: bool
    chunk_ms: np.ndarray
    part_ms: np.ndarray
    overlaps: bool = False
    changed_ms: tuple[float, float] = (0.0, 0.0)
    alone: np.ndarray = _NONE

    @property
    def sliced(self) -> bool:
        return bool(self.chunk_ms.any())

    def knobs(
        self, *, cap: float = 1.2, without: Iterable[str] = (), n_batch: int = 2048,
        max_merge: int = 0, budget_ms: float = 50.0, reading_ms: float = 25.0,
    ) -> Knobs:  # fmt: skip
        """What the daemon is told on this machine; ``without``: names of FEATURES."""
        features = ALL_FEATURES - sum(FEATURES[name] for name in set(without))
        return Knobs(
            n_batch, max_merge, budget_ms, cap, reading_ms, self.abortable,
            self.aside_per_s > 0.0, features, self.wide_reads, overlaps=self.overlaps,
            sliced=self.sliced,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def tick_ms(machine, mode, rows, prompt, past):
    """Mean wall time of a tick in ms, without noise."""
    tokens = rows + prompt
    ms = machine.graph[mode, tokens] + machine.row[mode, rows]
    if rows == 1 and prompt > 0 and machine.first[mode, prompt] > 0.0:
        ms = machine.first[mode, prompt]
    if prompt == 0 and machine.alone[rows] > 0.0:
        ms = machine.alone[rows]
    return ms + machine.kv_ms * tokens * past / 1000.0


@njit(nogil=True, cache=True)
def noisy_ms(machine, mode, rows, prompt, past):
    """One draw of it, from numba's own generator."""
    ms = tick_ms(machine, mode, rows, prompt, past)
    ms *= max(1.0 + machine.noise * np.random.standard_normal(), 0.5)
    if machine.outliers > 0.0 and np.random.random() < machine.outliers:
        ms *= machine.outlier
    return ms


@njit(nogil=True, cache=True)
def seed(value):
    np.random.seed(value)


def _curve(points: dict[int, float]) -> np.ndarray:
    """Piecewise linear through the points, and on with the last slope."""
    x = np.array(sorted(points), float)
    y = np.array([points[int(i)] for i in x])
    at = np.arange(MOST + 1, dtype=float)
    curve = np.interp(at, x, y)
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    beyond = at > x[-1]
    curve[beyond] = y[-1] + slope * (at[beyond] - x[-1])
    return curve


def _no_slices() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(CHUNK_SIZES.size), np.zeros(CHUNK_SIZES.size)


def _cpu() -> Machine:
    # qwen2.5-0.5b q8_0 on two cores, milliseconds as measured
    rows = _curve(
        {0: 0, 1: 16.5, 2: 46, 3: 57, 4: 68, 5: 85, 6: 91, 7: 99, 8: 71, 16: 90, 32: 167}
    )
    graph = _curve({0: 0, 1: 11, 4: 46, 8: 48, 16: 64, 32: 118, 64: 211, 128: 396})
    first = _curve({0: 16.5, 1: 40, 3: 54, 4: 66, 7: 62, 15: 69, 32: 129, 64: 222, 128: 407})
    # with one thread
    rows_1 = _curve({0: 0, 1: 21, 2: 62, 4: 100, 8: 135, 16: 175, 32: 320})
    graph_1 = _curve({0: 0, 1: 20, 8: 95, 128: 724})
    first[0] = 0.0
    first[160:] = 0.0
    return Machine(
        np.stack([graph, graph_1]), np.stack([rows - graph, rows_1 - graph_1]),
        np.stack([first, np.zeros(MOST + 1)]), 0.002, 0.02, 0.002, 3.0, 177.0, True, False,
        *_no_slices(),
    )  # fmt: skip


def _cpu_sliced() -> Machine:
    # the same model on two cores with AMX, by what a daemon had learned; 24 layers, of which each
    # has a part that takes half of its time
    rows = _curve({0: 0, 1: 18, 2: 30, 4: 37, 6: 43, 8: 45, 16: 54, 24: 66, 32: 93})
    graph = _curve({0: 0, 1: 13, 4: 24, 8: 26, 16: 28, 32: 50, 64: 80, 128: 125, 256: 260})
    first = _curve({0: 18, 1: 30, 3: 34, 7: 35, 15: 52, 32: 71, 64: 100, 128: 178})
    rows_1 = _curve({0: 0, 1: 45, 2: 53, 4: 59, 8: 77, 16: 88, 32: 141})
    graph_1 = _curve({0: 0, 1: 25, 8: 50, 128: 250})
    first[0] = 0.0
    first[160:] = 0.0
    chunks = np.where(CHUNK_SIZES <= 128, graph[CHUNK_SIZES], 0.0)
    return Machine(
        np.stack([graph, graph_1]), np.stack([rows - graph, rows_1 - graph_1]),
        np.stack([first, np.zeros(MOST + 1)]), 0.002, 0.02, 0.002, 3.0, 400.0, True, False,
        chunks, chunks / 48.0,
    )  # fmt: skip


def _gpu(points: dict[int, float], row_ms: float, kv_ms: float) -> Machine:
    graph = _curve(points)
    graph[0] = 0.0
    row = row_ms * np.arange(MOST + 1)
    return Machine(
        np.stack([graph, graph]), np.stack([row, row]), np.zeros((2, MOST + 1)), kv_ms,
        0.01, 0.001, 3.0, 0.0, False, True, *_no_slices(),
    )  # fmt: skip


def _captured(
    rows: dict[int, float], changed: tuple[float, float], prompts: dict[int, float]
) -> Machine:
    """``rows``, ``prompts``: ms of a tick by rows, and by prompt tokens."""
    graph = _curve({0: 0.0, **prompts})
    return Machine(
        np.stack([graph, graph]), np.zeros((2, MOST + 1)), np.zeros((2, MOST + 1)), 0.0,
        0.01, 0.0, 1.0, 0.0, False, True, *_no_slices(), overlaps=True, changed_ms=changed,
        alone=_curve({0: 0.0, **rows}),
    )  # fmt: skip


def presets() -> dict[str, Machine]:
    return {
        "cpu-2core-0.5b": _cpu(),
        "cpu-2core-amx-0.5b": _cpu_sliced(),
        "gpu-dense": _gpu({0: 1.3, MOST: 1.3 + 0.006 * MOST}, 0.014, 0.00005),
        "gpu-moe": _gpu(
            {0: 3.4, 1: 4, 2: 4.7, 4: 5.8, 8: 7.5, 16: 10, 32: 13, 64: 16, 4096: 16 + 0.03 * 4032},
            0.02, 0.0001,
        ),
        # two models on an H200, by its traces: 0.5B, and 30B-A3B
        "h200-dense": _captured(
            {1: 1.25, 2: 1.55, 4: 1.9, 8: 2.4, 16: 4.2, 32: 5.4}, (2.0, 4.0),
            {1: 1.3, 64: 4.0, 256: 7.5, 512: 12.2, 1024: 17.5, 2048: 33.0, 4096: 66.0},
        ),
        "h200-moe": _captured(
            {1: 3.8, 2: 5.0, 4: 7.2, 8: 10.7, 16: 17.0, 32: 25.0}, (4.5, 8.0),
            {1: 4.0, 16: 17.0, 64: 24.0, 256: 38.0, 512: 53.0, 1024: 88.0, 2048: 175.0},
        ),
    }  # fmt: skip


def learned(cost: CostModel, aside_per_s: float, abortable: bool, wide_reads: bool) -> Machine:
    """The machine on which a daemon learned ``cost`` (of a file in the cache's ``costs``).

    What it never saw is what the policy would guess.  Deviations are taken as normally distributed,
    as wide as the shapes that were seen often.  Where it has slices, ``aside_per_s`` counted their
    tokens, and cores of their own are taken to be half of all.
    """
    if cost.parts.any():
        known_parts = cost.parts > 0.0
        aside_per_s = 500.0 * float((CHUNK_SIZES[known_parts] / cost.parts[known_parts]).max())
    graph, row, first = (np.zeros((2, MOST + 1)) for _ in range(3))
    for mode in range(2):
        known = mode if predict(cost, mode, 1, 0, 0.0) > 0.0 else 0
        for n in range(1, MOST + 1):
            graph[mode, n] = predict(cost, known, 0, n, 0.0)
            row[mode, n] = predict(cost, known, n, 0, 0.0) - graph[mode, n]
            first[mode, n] = predict(cost, known, 1, n, 0.0)
    often = cost.count >= 20.0
    share = cost.spread[often] / cost.mean[often]
    noise = 1.25 * float(np.median(share)) if share.size else 0.02
    return Machine(
        graph, row, first, float(cost.slope[1, 2]), noise, 0.0, 1.0, aside_per_s, abortable,
        wide_reads, cost.parts.copy(), cost.longest.copy(),
    )  # fmt: skip


def probed(machine: Machine, n_rows: int = 32, most: int = 2048) -> CostModel:
    """What the engine knows after the probe of its first start on this machine."""
    seed(0)
    cost = CostModel.unknown()
    spent = 0.0
    for mode, rows, prompt in SHAPES if machine.aside_per_s > 0 else PLAIN_SHAPES:
        if rows > n_rows or prompt > most - rows or is_known(cost, mode, rows, prompt):
            continue
        expected = tick_ms(machine, mode, rows, prompt, 0)
        if expected > LONGEST_MS or spent + TIMES * expected > PROBE_S * 1000.0:
            continue
        for _ in range(TIMES):
            past = PAST * rows / (rows + prompt)
            ms = noisy_ms(machine, mode, rows, prompt, past)
            spent += ms
            learn(cost, mode, rows, prompt, past, ms)
    cost.parts[:], cost.longest[:] = machine.chunk_ms, machine.part_ms
    return cost
