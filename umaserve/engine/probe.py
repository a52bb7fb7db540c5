"""The first start on a machine: a few ticks of each shape, so that the policy need not guess.

Bounded in time; what is left out is learned from real ticks.  Runs on the bare context before there
are sessions, and leaves the KV cache empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from umaserve.policy.cost import CostModel, is_known, learn, predict

from .thread_places import place_threads

if TYPE_CHECKING:
    from .boot import Loaded

PROBE_S = 4.0
LONGEST_MS = 500.0  # no tick of the probe is expected to take longer
PAST = 32  # tokens that the decoding rows have behind them
QUICK_MS = 20.0  # ticks below this are repeated: a shape's first ones pay for kernels and buffers
TIMES, QUICK_TIMES = 2, 8
BELIEVED = 2  # as often as it takes to believe a shape


def probe_costs(
    loaded: Loaded,
    cost: CostModel,
    aside_threads: int,
    progress: Callable[[float], None],
    seconds: float = PROBE_S,
) -> None:
    """Measure tick shapes and `learn` them, the most telling first, for at most ``seconds``."""
    Prober(loaded, cost).run(aside_threads, progress, seconds)


def shapes(n_rows: int, most: int, aside: bool) -> Iterator[tuple[int, int, int]]:
    """(mode, rows, prompt tokens), in order of importance."""
    yield 0, 1, 0
    for prompt in (16, 1, 64):
        yield 0, 0, prompt
    if aside:
        yield 1, 1, 0
    for rows in (2, 8, 4):
        yield 0, rows, 0
    for prompt in (1, 8, 16, 4):
        yield 0, 1, prompt
    yield 0, 0, 8
    for rows in (3, 6, 16):
        yield 0, rows, 0
    for prompt in (32, 128, 4, 256, 512):
        yield 0, 0, prompt
    for prompt in (32, 64, 128, 2, 256):
        yield 0, 1, prompt
    if aside:
        for rows in (2, 8, 4):
            yield 1, rows, 0
    for rows in (5, 7, 32, 12, 24):
        yield 0, rows, 0
    for rows in (4, 8):
        for prompt in (8, 32, 64):
            yield 0, rows, prompt


class Prober:
    def __init__(self, loaded: Loaded, cost: CostModel) -> None:
        self._loaded = loaded
        self._cost = cost
        self._lib = loaded.library.lib
        self._past: dict[int, int] = {}
        self._one_and_more = loaded.threads(0)

    def run(self, aside_threads: int, progress: Callable[[float], None], seconds: float) -> None:
        loaded, cost = self._loaded, self._cost
        n_rows, most = loaded.n_seq, min(loaded.n_batch, loaded.n_ctx // 2)
        self._batch = self._lib.llama_batch_init(most + n_rows, 0, 1)
        began = time.monotonic()
        try:
            for mode, rows, prompt in shapes(n_rows, most, aside_threads > 0):
                spare = loaded.n_ctx - (rows + 1) * (PAST + 1) - prompt
                if rows > n_rows or prompt > most - rows or spare < 0:
                    continue
                if is_known(cost, mode, rows, prompt):
                    continue
                spent = time.monotonic() - began
                expected = predict(cost, mode, rows, prompt, 0) or predict(
                    cost, 0, rows, prompt, 0
                )
                if expected > LONGEST_MS or spent * 1000 + TIMES * expected > seconds * 1000:
                    continue
                progress(min(spent / seconds, 1.0))
                self._threads(mode, aside_threads)
                wall_ms = self._typical(rows, prompt)
                if wall_ms <= 0.0:
                    return
                past = PAST * rows / (rows + prompt)
                for _ in range(BELIEVED):
                    learn(cost, mode, rows, prompt, past, wall_ms)
                if time.monotonic() - began > seconds:
                    return
        finally:
            self._lib.llama_batch_free(self._batch)
            loaded.context.seq_rm(-1, -1, -1)
            self._past.clear()
            self._threads(0, 0)

    def _threads(self, mode: int, aside: int) -> None:
        loaded = self._loaded
        self._one_and_more = loaded.threads(aside if mode else 0)
        loaded.context.set_threads(*self._one_and_more)

    def _typical(self, rows: int, prompt: int) -> float:
        """Wall time in ms of a tick of this shape; 0 when the library refused it."""
        taken: list[float] = []
        while len(taken) < (QUICK_TIMES if taken and min(taken) < QUICK_MS else TIMES):
            wall_ms = self._measure(rows, prompt)
            if wall_ms <= 0.0:
                return 0.0
            taken.append(wall_ms)
        if len(taken) == TIMES:
            return min(taken)
        later = sorted(taken[len(taken) // 2 :])
        return later[len(later) // 2]

    def _measure(self, rows: int, prompt: int) -> float:
        for row in range(rows):
            if self._past.get(row, 0) == 0:
                if not self._decode([(row, PAST)], 0):
                    return 0.0
                self._past[row] = PAST
        for row in [row for row in self._past if row >= rows]:
            self._loaded.context.seq_rm(row)
            del self._past[row]
        before = time.monotonic()
        if not self._decode([(row, 1) for row in range(rows)], prompt, rows):
            return 0.0
        wall_ms = (time.monotonic() - before) * 1000.0
        for row in range(rows):  # the same cells again: a probe is to measure one depth
            self._loaded.context.seq_rm(row, self._past[row], -1)
        if prompt:
            self._loaded.context.seq_rm(rows)
        return wall_ms

    def _decode(self, entries: list[tuple[int, int]], prompt: int, seq: int = 0) -> bool:
        batch, n = self._batch, 0
        for row, count in entries:
            start = self._past.get(row, 0)
            for i in range(count):
                self._token(n, row, start + i, i == count - 1)
                n += 1
        for i in range(prompt):
            self._token(n, seq, i, False)
            n += 1
        batch.n_tokens = n
        place_threads(self._loaded.places, self._one_and_more[n > 1])
        if self._lib.llama_decode(self._loaded.context.pointer, batch) != 0:
            return False
        self._lib.llama_synchronize(self._loaded.context.pointer)
        return True

    def _token(self, n: int, seq: int, pos: int, logits: bool) -> None:
        batch = self._batch
        # different ids: a mixture of experts sends equal tokens to the same ones
        batch.token[n] = 1 + (7919 * (pos + 31 * seq + 1)) % (self._loaded.n_vocab - 1)
        batch.pos[n] = pos
        batch.n_seq_id[n] = 1
        batch.seq_id[n][0] = seq
        batch.logits[n] = logits
