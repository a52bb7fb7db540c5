"""Windows, quantiles and histograms against the plain definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.metrics.window import Histogram, Window, quantile

QS = (0.0, 0.5, 0.95, 0.99)
values = st.lists(st.floats(0, 1e6), max_size=60)


@given(values, st.floats(0, 1))
def test_quantile_is_nearest_rank(samples: list[float], q: float) -> None:
    result = quantile(samples, q)
    if not samples:
        assert result is None
        return
    ordered = sorted(samples)
    assert result == ordered[max(0, math.ceil(q * len(ordered)) - 1)]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e7)), max_size=60))
def test_window_is_within_one_percent_of_the_nearest_rank(steps: list) -> None:
    window, now, kept = Window(span_s=10), 100.0, []
    for step, value in steps:
        now += step
        window.add(now, value)
        kept.append((now, value))
        expected = [v for t, v in kept if int(t) > int(now) - 10]
        for q, found in zip(QS, window.quantiles(now, QS), strict=True):
            assert found == pytest.approx(quantile(expected, q), rel=0.01, abs=2 * Window.LOW)
        assert window.quantiles(now, [1.0]) == [max(expected)]
    assert window.quantiles(now + 11, QS) == [None] * len(QS)


@given(st.lists(st.floats(0, 300), max_size=50))
def test_histogram_counts_by_inclusive_upper_bound(samples: list[float]) -> None:
    histogram = Histogram((1, 10, 100))
    for sample in samples:
        histogram.add(sample)
    array = np.array(samples)
    snapshot = histogram.snapshot()
    assert snapshot["counts"] == [
        int((array <= 1).sum()),
        int(((array > 1) & (array <= 10)).sum()),
        int(((array > 10) & (array <= 100)).sum()),
        int((array > 100).sum()),
    ]
    assert snapshot["count"] == len(samples)
