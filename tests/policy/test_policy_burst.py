"""Requests that come together are answered together; whoever comes later, or is long, is paced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import MACHINES, NOW, empty, known, plan_of, put, told
from tests.support.simulated import gaps_ms, play, quiet
from tools.sim_loads import INTERACTIVE, Load, together
from umaserve.policy.base import ALL_FEATURES, AUTO, FEATURES, LABELLED
from umaserve.policy.burst import LONG_TICKS, OWN_MS, TOGETHER_MS, YOUNG_MS
from umaserve.policy.cost.model import predict
from umaserve.policy.urgency import SENT_TOGETHER_MS

MS = 1_000_000


def began(state, slots, ago_ms):
    for s in slots:
        state.t_first_ns[s] = NOW - int(ago_ms * MS)


def came(state, slots, ago_ms):
    for s in slots:
        state.t_submit_ns[s] = NOW - int(ago_ms * MS)


def fed(plan, entries):
    return {int(plan.slots[e]): int(plan.counts[e]) for e in range(entries)}


def crowd(began_ms=20.0, came_ms=40.0, streams=1, tokens=16):
    """Streams that have just begun, without credit for a short prompt, and six prompts."""
    state = empty()
    for s in range(streams):
        put(state, s, 0, 100, 99, credit=-1.0)
    began(state, range(streams), began_ms)
    for s in range(3, 9):
        put(state, s, 0, tokens, 0)
    came(state, range(3, 9), came_ms)
    return state


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("aside", [0, 1])
def test_prompts_that_came_with_the_stream_are_computed_at_once(name, paced, aside):
    can_aside = told(name).can_aside or paced
    state = crowd()
    state.aside[3:9] = aside if can_aside else 0
    plan, entries = plan_of(state, told(name, paced=paced, can_aside=can_aside), known(name))
    assert plan.aside[0] == -1
    prompts = {s: n for s, n in fed(plan, entries).items() if s >= 3}
    assert prompts == dict.fromkeys(range(3, 9), 16) or fills(plan)


def fills(plan):
    """The tick is as long as one may be for them, or nearly."""
    return 0.75 * LONG_TICKS * 50.0 <= plan.info.predicted_ms <= 1.25 * LONG_TICKS * 50.0


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize(
    ("began_ms", "came_ms"),
    [
        (YOUNG_MS + 1.0, YOUNG_MS + 10.0),  # the stream is not young any more
        (500.0, 500.0 - TOGETHER_MS - 1.0),  # they came later
    ],
)
def test_a_stream_that_was_there_before_keeps_its_pace(name, began_ms, came_ms):
    without = ALL_FEATURES - FEATURES["burst"]
    state = crowd(began_ms, came_ms)
    plan, entries = plan_of(state, told(name, can_aside=False), known(name))
    as_before, n = plan_of(state, told(name, can_aside=False, features=without), known(name))
    assert fed(plan, entries) == fed(as_before, n)
    assert sum(fed(plan, entries).values()) < 6 * 16


def sent_at_once(began_ms=4000.0, apart_ms=0.0, program=0):
    """A stream of a helper, and prompts of six others of the same program; or of another one."""
    state = crowd(began_ms, began_ms + 20.0)
    came(state, [0], began_ms + 20.0 + apart_ms)
    state.program[3:9] = program
    return state


def at_once(name, state):
    """Whether the six prompts are computed as if no stream were there to be slowed down."""
    plan, entries = plan_of(state, told(name, can_aside=False), known(name))
    return sum(n for s, n in fed(plan, entries).items() if s >= 3) == 6 * 16 or fills(plan)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_what_a_program_sends_at_once_has_longer_where_streams_share_a_tick(name):
    cost = known(name)
    shared_ms, apart_ms = predict(cost, 0, 2, 0, 100), 2.0 * predict(cost, 0, 1, 0, 100)
    assert at_once(name, sent_at_once()) == (shared_ms < apart_ms)
    assert not at_once(name, sent_at_once(began_ms=OWN_MS + 1.0))


@pytest.mark.parametrize("different", [{"program": 1}, {"apart_ms": SENT_TOGETHER_MS + 1.0}])
def test_what_was_not_sent_at_once_has_not(different):
    assert not at_once("h200-moe", sent_at_once(**different))


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("auto", [LABELLED, AUTO])
def test_streams_go_on_while_the_others_prompts_are_computed(name, auto):
    result = play(together(auto=auto), quiet(name), n_slots=8, n_ctx=1 << 20)
    tick_ms = LONG_TICKS * 50.0
    # the largest tick of all these rows is what a prediction may be wrong by
    rows_ms = predict(known(name), 0, 8, 0, 1500)
    assert gaps_ms(result, INTERACTIVE).max() <= 1.25 * tick_ms + 2.0 * rows_ms


@pytest.mark.parametrize("name", ["cpu-2core-amx-0.5b", "h200-moe"])
@pytest.mark.parametrize("auto", [LABELLED, AUTO])
def test_all_that_was_sent_at_once_is_answered_sooner(name, auto):
    machine, load = quiet(name), together(auto=auto)
    size = {"n_slots": 8, "n_ctx": 1 << 20}
    soon = play(load, machine, **size).jobs
    paced = play(load, machine, machine.knobs(without=("burst", "urgency")), **size).jobs
    began = soon.due.min()
    assert soon.first.max() - began < 0.5 * (paced.first.max() - began)
    assert soon.end.max() - began < 0.9 * (paced.end.max() - began)


@pytest.mark.parametrize("auto", [LABELLED, AUTO])
def test_a_question_of_somebody_else_does_not_wait_for_what_was_sent_at_once(auto):
    load = together(auto=auto)
    for due_ms in (700.0, 2600.0):
        load.add(INTERACTIVE, 40, 60, due_ms, auto=auto, program=2)
    jobs = play(load, quiet("h200-moe"), n_slots=10, n_ctx=1 << 20).jobs
    first_ms = (jobs.first - jobs.due)[8:] / MS
    # the tick under way, and what remains of its chunk
    assert first_ms.max() < 1.5 * LONG_TICKS * 50.0


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_one_older_stream_is_enough_to_pace_them(name):
    state = crowd(streams=3)
    began(state, [1], 5000.0)
    plan, entries = plan_of(state, told(name, can_aside=False), known(name))
    assert sum(n for s, n in fed(plan, entries).items() if s >= 3) < 6 * 16


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_long_prompt_among_them_is_paced_and_the_others_do_not_wait_for_it(name):
    state, cost = crowd(), known(name)
    put(state, 9, 0, 200_000, 0)
    came(state, [9], 40.0)
    plan, entries = plan_of(state, told(name, can_aside=False), cost)
    got = fed(plan, entries)
    # as much as the short ones have, which go first
    prompts = sum(n for s, n in got.items() if s >= 3)
    assert prompts == 6 * 16 or prompts < 6 * 16 and fills(plan)
    assert 9 not in got
    assert predict(cost, 0, 0, 200_000, 0) > YOUNG_MS


@pytest.mark.slow
@given(
    n=st.integers(2, 40), tokens=st.integers(1, 60), within_ms=st.floats(0.0, 20.0),
    name=st.sampled_from(sorted(MACHINES)),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_nobody_of_a_crowd_waits_long_after_the_first(n, tokens, within_ms, name):
    """All first tokens come within the time that the prompts take, and some ticks."""
    machine, load = quiet(name), Load()
    for i in range(n):
        load.add(INTERACTIVE, tokens, 40, due_ms=within_ms * i / n)
    result = play(load, machine, n_slots=n, n_seq=n)
    first_ms = (result.jobs.first - result.jobs.due) / MS
    all_ms = predict(known(name), 0, 0, n * tokens, 0)
    if all_ms < 0.5 * YOUNG_MS:
        row_ms = predict(known(name), 0, n, 0, 0)
        assert first_ms.max() <= within_ms + 2.5 * all_ms + 4.0 * row_ms + LONG_TICKS * 50.0
    assert not result.outcome.faults.any()


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_crowd_is_answered_sooner_than_paced_and_its_streams_keep_the_cap(name):
    def crowd_load():
        load = Load()
        for i in range(16):
            load.add(INTERACTIVE, 16, 200, due_ms=0.5 * i)
        return load

    machine = quiet(name)
    with_it = play(crowd_load(), machine, n_slots=16, n_seq=16)
    paced = play(crowd_load(), machine, machine.knobs(without=("burst",)), n_slots=16, n_seq=16)

    def last_ms(result):
        return float((result.jobs.first - result.jobs.due).max()) / MS

    assert last_ms(with_it) < 0.9 * last_ms(paced)
    assert with_it.jobs.end.max() <= paced.jobs.end.max()
    gaps = gaps_ms(with_it, INTERACTIVE)
    assert np.percentile(gaps, 95) <= 1.2 * np.percentile(gaps, 50)
