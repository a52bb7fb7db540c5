"""A sliding window of samples, and a histogram with fixed bounds.

Time is always a parameter (seconds of any one clock that does not go back).  Counts lie in
``array.array``.  A single item is written there several times faster than in a numpy array, and
numpy reads the same memory whole.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np


def quantile(values: np.ndarray | Sequence[float], q: float) -> float | None:
    """The ``q`` quantile (0..1) by nearest rank: always one of the values; ``None`` of nothing."""
    samples = np.asarray(values, dtype=np.float64)
    if samples.size == 0:
        return None
    rank = min(samples.size - 1, max(0, math.ceil(q * samples.size) - 1))
    return float(np.partition(samples, rank)[rank])


class Window:
    """Quantiles of the samples of the last ``span_s`` seconds, however many there are.

    Samples are counted per second in buckets that grow by 2 %, and the seconds' sum is kept along.
    So adding a sample and asking for quantiles cost the same at ten samples a second and at ten
    thousand.  Everything is allocated once.  A quantile is within 1 % of the sample at its nearest
    rank, for samples from ``LOW`` to ``HIGH``; the largest is exact.  The window's old end moves in
    steps of a second: it holds the second that runs and the ``span_s`` - 1 before it.
    """

    LOW, HIGH, GROWTH = 1e-3, 1e8, 1.02
    _PER_E = 1.0 / math.log(GROWTH)
    _OFFSET = 1.0 - math.log(LOW) * _PER_E  # bucket of x: log(x) * _PER_E + _OFFSET, cut down
    _BUCKETS = int(math.log(HIGH / LOW) * _PER_E) + 2

    def __init__(self, span_s: int = 60) -> None:
        self._span_s = span_s
        self._second = 0  # the newest; no second before it is written any more
        self._row = 0  # where that second's counts begin
        self._counts = array("i", bytes(4 * span_s * self._BUCKETS))
        self._sum = array("i", bytes(4 * self._BUCKETS))
        self._lowest = array("d", [math.inf]) * span_s
        self._highest = array("d", [-math.inf]) * span_s
        self._rows = np.frombuffer(self._counts, np.intc).reshape(span_s, self._BUCKETS)
        self._sums = np.frombuffer(self._sum, np.intc)
        self._below = np.zeros(self._BUCKETS, np.int64)

    def add(self, now_s: float, value: float) -> None:
        if now_s >= self._second + 1:
            self._advance(int(now_s))
        bucket = 0
        if value > self.LOW:
            bucket = int(math.log(value) * self._PER_E + self._OFFSET)
            if bucket >= self._BUCKETS:
                bucket = self._BUCKETS - 1
        self._counts[self._row + bucket] += 1
        self._sum[bucket] += 1
        second = self._second % self._span_s
        if value > self._highest[second]:
            self._highest[second] = value
        if value < self._lowest[second]:
            self._lowest[second] = value

    def _advance(self, second: int) -> None:
        """Make ``second`` the newest and forget those that it pushes out."""
        span = self._span_s
        for passed in range(max(self._second + 1, second - span + 1), second + 1):
            row = passed % span
            if self._highest[row] != -math.inf:
                self._sums -= self._rows[row]
                self._rows[row] = 0
                self._lowest[row], self._highest[row] = math.inf, -math.inf
        self._second = second
        self._row = second % span * self._BUCKETS

    def quantiles(self, now_s: float, qs: Sequence[float]) -> list[float | None]:
        """``None`` where there is no sample; 1.0 is the largest."""
        if now_s >= self._second + 1:
            self._advance(int(now_s))
        high = max(self._highest)
        if high == -math.inf:
            return [None] * len(qs)
        low, below = min(self._lowest), self._below
        np.cumsum(self._sums, out=below)
        count = int(below[-1])
        out: list[float | None] = []
        for q in qs:
            rank = min(count, max(1, math.ceil(q * count)))
            bucket = int(below.searchsorted(rank))
            middle = self.LOW * self.GROWTH ** (bucket - 0.5) if bucket else low
            out.append(high if rank == count else min(max(middle, low), high))
        return out


MS_BOUNDS = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 250, 500, 1000, 2500, 5000, 10000)
ROW_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 2048)


class Histogram:
    """Counts per bucket since the start; ``bounds`` are inclusive upper ends, ascending."""

    def __init__(self, bounds: Sequence[float] = MS_BOUNDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def snapshot(self) -> dict[str, Any]:
        """``le`` (upper bounds; one bucket more has none), ``counts``, ``sum``, ``count``."""
        return {
            "le": list(self.bounds),
            "counts": list(self.counts),
            "sum": round(self.total, 3),
            "count": sum(self.counts),
        }
