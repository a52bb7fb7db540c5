"""How many threads the ticks get, by times that others may have disturbed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.engine.start.thread_choice import fewer_pay

TIMES = st.lists(st.floats(0.01, 0.5), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("fewer", "all_cores", "pay"),
    [
        ([46, 47, 46, 46], [31, 32, 31, 31], False),
        ([46, 47, 46, 46], [31, 160, 31, 32], False),  # one long wait
        ([46, 47, 46, 46], [90, 80, 31, 95], True),  # somebody else uses a core
        ([46, 47, 46, 46], [47, 48, 47, 49], False),  # not by a tenth
        ([30, 30, 30, 90], [40, 40, 40, 40], False),
    ],
)
def test_fewer_threads_have_to_be_faster_most_of_the_time(fewer, all_cores, pay):
    assert fewer_pay(fewer, all_cores) == pay


@given(TIMES)
def test_equal_times_keep_all_cores(times):
    assert not fewer_pay(times, times)
