"""Throughput at the cap, against the plain definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.metrics.slices import CapSlices
from umaserve.metrics.window import quantile

SPAN = 6
# seconds since the event before, tokens sent, a time between tokens, its ceiling
event = st.tuples(
    st.floats(0, 1.5), st.integers(0, 5), st.floats(0, 4000) | st.none(),
    st.sampled_from([0, 20, 900]),
)  # fmt: skip


@given(st.lists(event, max_size=60))
def test_tokens_of_the_seconds_that_held_the_cap(events: list) -> None:
    start = now = 1000.25
    slices = CapSlices(start, SPAN)
    tokens: dict[int, int] = {}
    ratios: dict[int, list[float]] = {}  # of a slice
    unknown: set[int] = set()
    for step, count, gap, ceiling in events:
        now += step
        index = int(now - start)
        slices.tokens(now, count)
        tokens[index] = tokens.get(index, 0) + count
        if gap is None:
            continue
        slices.interactive(now, gap, ceiling)
        if not ceiling:
            unknown.add(index)
            continue
        covered = [index]
        if gap > 1000:  # the slices that it covers whole, as far as the window goes
            first = int(now - gap / 1000 - start) + 1
            covered += range(max(first, index - SPAN + 1, 0), index)
        for i in covered:
            ratios.setdefault(i, []).append(gap / ceiling)
    newest = int(now - start)
    held = judged = 0
    for i in range(max(0, newest - SPAN + 1), newest):
        if i in unknown and i not in ratios:
            continue
        judged += 1
        if (quantile(ratios.get(i, [0.0]), 0.95) or 0.0) <= 1:
            held += tokens.get(i, 0)
    assert slices.tokens_per_s(now) == (held / judged if judged else None)


def test_a_stall_breaks_every_second_that_it_covers() -> None:
    slices = CapSlices(0.0)
    for i in range(100):
        slices.tokens(i / 20, 1)  # others go on
    slices.interactive(4.99, 4500.0, 50.0)  # from 0.49 on
    assert slices.tokens_per_s(5.0) == pytest.approx(20 / 5)  # the first second held


def test_nobody_interactive_is_nobody_let_down() -> None:
    slices = CapSlices(0.0)
    for i in range(40):
        slices.tokens(i / 20, 2)
    assert slices.tokens_per_s(2.0) == 40
    assert slices.tokens_per_s(4.0) == 20  # idle seconds count as time
    assert slices.tokens_per_s(1e6) == 0


def test_five_in_a_hundred_may_be_late() -> None:
    for late, expected in ((5, 100.0), (6, 0.0)):
        slices = CapSlices(0.0)
        for i in range(100):
            slices.tokens(0.5, 1)
            slices.interactive(0.5, 30.0 if i < late else 10.0, 20.0)
        assert slices.tokens_per_s(1.0) == expected
    assert math.ceil(0.95 * 100) == 95
