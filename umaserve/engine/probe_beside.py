"""The first start on an accelerator: how much a prompt chunk slows the ticks that run beside it.

Single rows decode in the engine's context while a thread computes chunks in a second one.  Each
size that the policy hands out is tried, from small to large, until ticks take so much longer that
no larger one could be used.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from umaserve.policy.cost import BESIDE_SIZES, CostModel, learn_beside, learn_chunk
from umaserve.policy.latency_guard import HARD

from .batch import Batch
from .prefill_thread import open_second

if TYPE_CHECKING:
    from umaserve.llama import Context

    from . import messages as m
    from .boot import Loaded

PROBE_S = 2.0
LONGEST_MS = 50.0  # a row that takes longer is none of an accelerator
CHUNKS, FEWEST_TICKS = 3, 4  # of each size, at least; the first pays for kernels and buffers
PAST = 32  # tokens that the decoding row has behind it


def probe_beside(
    loaded: Loaded, start: m.Start, cost: CostModel, seconds: float = PROBE_S
) -> None:
    """Measure chunks of each size beside single rows, and learn that; for at most ``seconds``.

    Leaves the KV cache empty.  Where no second context can be made, nothing is learned.
    """
    from umaserve import llama

    most = int(BESIDE_SIZES[-1])
    if loaded.n_ctx < 2 * most:
        return
    try:
        second = open_second(loaded, start, 2 * most, most, loaded.n_threads)
    except llama.LlamaError:
        return
    with second:
        _Probe(loaded, second).run(cost, time.monotonic() + seconds)
    loaded.context.seq_rm(-1)


class _Probe:
    def __init__(self, loaded: Loaded, second: Context) -> None:
        self._loaded, self._second = loaded, second
        ffi = loaded.library.ffi
        self._row, self._chunk = Batch(ffi, PAST, 1), Batch(ffi, int(BESIDE_SIZES[-1]), 1)

    def run(self, cost: CostModel, until_s: float) -> None:
        first = self._loaded.context
        if not self._decode(first, self._row, 0, PAST):
            return
        alone = [self._tick() for _ in range(24)][8:]
        alone_ms = statistics.median(alone)
        if not 0.0 < alone_ms <= LONGEST_MS:
            return
        for size in BESIDE_SIZES.tolist():
            ticks, chunk_ms = self._beside(size)
            if len(ticks) < FEWEST_TICKS or not chunk_ms:
                return
            factor = statistics.median(ticks) / alone_ms
            for _ in range(FEWEST_TICKS):
                learn_beside(cost, size, factor)
            learn_chunk(cost, size, chunk_ms)
            if factor > HARD or time.monotonic() > until_s:
                return

    def _beside(self, size: int) -> tuple[list[float], float]:
        """Ticks in ms that ran beside a chunk from begin to end, and a chunk's ms."""
        spans: list[tuple[float, float]] = []
        done = threading.Event()

        def compute() -> None:
            try:
                for _ in range(CHUNKS + 1):
                    self._second.seq_rm(0)
                    began = time.perf_counter()
                    if not self._decode(self._second, self._chunk, 0, size):
                        return
                    spans.append((began, time.perf_counter()))
            finally:
                done.set()

        thread = threading.Thread(target=compute)
        thread.start()
        ticks: list[tuple[float, float]] = []
        while not done.is_set():
            began = time.perf_counter()
            if self._tick() <= 0.0:
                break
            ticks.append((began, time.perf_counter()))
        thread.join()
        spans = spans[1:]
        inside = [
            1000.0 * (end - began)
            for began, end in ticks
            if any(first <= began and end <= last for first, last in spans)
        ]
        took = [1000.0 * (end - began) for began, end in spans]
        return inside, statistics.median(took) if took else 0.0

    def _tick(self) -> float:
        """One row in the engine's context, in the same cell again; ms, 0 when it was refused."""
        began = time.perf_counter()
        if not self._decode(self._loaded.context, self._row, PAST, 1):
            return 0.0
        took = 1000.0 * (time.perf_counter() - began)
        self._loaded.context.seq_rm(0, PAST, -1)
        return took

    def _decode(self, context: Context, batch: Batch, p0: int, n: int) -> bool:
        arrays = batch.arrays
        at = np.arange(p0, p0 + n)
        # different ids: a mixture of experts sends equal tokens to the same ones
        arrays.token[:n] = 1 + (7919 * (at + 1)) % (self._loaded.n_vocab - 1)
        arrays.pos[:n] = at
        arrays.seq[:n] = 0
        arrays.logits[:n] = 0
        arrays.logits[n - 1] = n == 1
        arrays.n_tokens[0] = n
        lib = self._loaded.library.lib
        if lib.uma_decode(context.pointer, batch.struct) != 0:
            return False
        context.synchronize()
        return True
