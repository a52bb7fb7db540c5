"""How many threads the ticks get, by times that others may have disturbed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.thread_choices import told, told_beside_a_draft_model
from tests.support.waiting import until
from umaserve.assets import demo_model_path
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.start.thread_choice import fewer_pay
from umaserve.wire import messages as m

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


@pytest.mark.skipif(usable_cores() < 2, reason="there is nothing to choose with one core")
@pytest.mark.parametrize(
    ("fewer", "looks", "taken"),
    [([], 1, False), ([0], 2, False), ([0, 1], 2, True), ([1], 1, False)],
)
def test_fewer_threads_have_to_be_faster_another_time_too(
    tmp_path: Path, fewer: list[int], looks: int, taken: bool
) -> None:
    """A daemon that starts in a busy moment, say with others, would be slow for its whole life."""
    seen = tmp_path / "looks"
    patch = partial(told, fewer=fewer, path=str(seen), doubt_s=3600.0)
    with DrivenEngine(patch=patch, n_threads=0, probe=False) as engine:
        until(lambda: seen.exists() and len(seen.read_text().split()) == 2 * looks)
        engine.run("import os", max_tokens=4)  # what was measured is settled by then
        if taken:
            n = engine.ready.n_threads
            assert engine.expect(m.Threads) == m.Threads(n - 1, n - 1)
        with pytest.raises(AssertionError):
            engine.expect(m.Threads, timeout=0.2)
        assert len(seen.read_text().split()) == 2 * looks


@pytest.mark.skipif(usable_cores() < 2, reason="there is nothing to choose with one core")
def test_all_threads_are_taken_back_once_the_neighbour_has_gone(tmp_path: Path) -> None:
    seen = tmp_path / "looks"
    patch = partial(told, fewer=[0, 1, 2], path=str(seen), doubt_s=0.0)
    with DrivenEngine(patch=patch, n_threads=0, probe=False) as engine:
        n = engine.ready.n_threads
        assert engine.expect(m.Threads) == m.Threads(n - 1, n - 1)
        assert engine.expect(m.Threads) == m.Threads(n, n)
        assert len(engine.run("import os", max_tokens=4)) == 4
        assert len(seen.read_text().split()) == 2 * 4  # two of a look; then there is no doubt


@pytest.mark.skipif(usable_cores() < 2, reason="there is nothing to choose with one core")
def test_a_draft_model_has_the_threads_that_were_chosen_while_idle(tmp_path: Path) -> None:
    """Its steps are in the ticks, and the threads that are left over have no cores."""
    seen, model = tmp_path / "threads", str(demo_model_path())
    patch = partial(told_beside_a_draft_model, path=str(seen))
    asked = {"n_threads": 0, "probe": False, "speculate": "draft", "draft_model": model}
    with DrivenEngine(patch=patch, **asked) as engine:
        assert engine.ready.draft_model == model
        n = engine.ready.n_threads
        assert engine.expect(m.Threads) == m.Threads(n - 1, n)
        until(lambda: len(seen.read_text().splitlines()) == 2)
        looks = [json.loads(line) for line in seen.read_text().splitlines()]
        assert looks == [[n, n], [n - 1, n]]
        assert len(engine.run("import os", max_tokens=20)) == 20
