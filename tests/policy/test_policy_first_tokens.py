"""First tokens: lone prompts in large chunks, the shortest remaining first, short ones at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import MACHINES, NOW, TRAFFIC, N, empty, known, plan_of, put, told
from tests.support.simulated import play, quiet
from tools.sim_loads import INTERACTIVE, Load
from tools.sim_machine import probed
from tools.sim_run import NS
from umaserve.policy.base import Memory
from umaserve.policy.cost.model import learn
from umaserve.policy.cost.prediction import predict
from umaserve.policy.guarded import TWICE
from umaserve.policy.prompts import AGED, MIN_CHUNK
from umaserve.policy.without_streams import (
    LONE_TICKS,
    LONG_TICKS,
    note_done,
    note_given_up,
)

GRAPH = int(TRAFFIC.n_ubatch)
GIVE_UP = [name for name, machine in MACHINES.items() if machine.abortable]
WAITED_NS = 10**9  # of what `put` puts


def fed(plan, entries):
    return {int(plan.slots[e]): int(plan.counts[e]) for e in range(entries)}


@pytest.mark.parametrize("name", sorted(GIVE_UP))
@pytest.mark.parametrize("tokens", [16, 100, 300, 1000, 4000])
def test_a_lone_prompt_is_one_chunk_where_it_can_be_given_up(name, tokens):
    state = empty()
    put(state, 2, 0, tokens, 0)
    plan, entries = plan_of(state, told(name), known(name))
    assert fed(plan, entries) == {2: min(tokens, GRAPH)}
    assert plan.info.predicted_ms <= LONE_TICKS * 50.0
    assert (plan.info.abort_ms > 0.0) == (plan.info.predicted_ms > 100.0)
    # elsewhere whoever comes waits for the whole of it
    plan, _ = plan_of(state, told(name, abortable=False), known(name))
    assert plan.info.predicted_ms <= max(200.0, predict(known(name), 0, 0, MIN_CHUNK, 0))


@pytest.mark.parametrize("name", sorted(GIVE_UP))
@pytest.mark.parametrize("calm_ms", [0.0, 700.0, 60_000.0])
def test_who_was_given_up_gets_no_longer_chunk_than_it_was_left_alone(name, calm_ms):
    state, memory = empty(), Memory.fresh(N)
    put(state, 2, 0, 20_000, 0)
    plan_of(state, told(name), known(name), memory=memory)
    note_given_up(memory, NOW - int(calm_ms * 1e6) - 1)
    plan, entries = plan_of(state, told(name), known(name), memory=memory)
    assert plan.info.predicted_ms <= max(calm_ms, LONG_TICKS * 50.0) + 1.0
    assert plan.info.abort_ms > 0.0
    assert fed(plan, entries)[2] == GRAPH or plan.info.predicted_ms > 0.7 * LONG_TICKS * 50.0


def test_no_prompt_is_given_up_more_than_twice_on_end():
    state, memory, name = empty(), Memory.fresh(N), "cpu-2core-0.5b"
    put(state, 2, 0, 20_000, 0)
    given_up = []
    for _ in range(3 * (TWICE + 1)):
        plan, _ = plan_of(state, told(name), known(name), memory=memory)
        given_up.append(plan.info.abort_ms > 0.0)
        if given_up[-1]:
            note_given_up(memory, NOW)
    assert given_up == [True, True, False] * 3
    note_given_up(memory, NOW)
    note_done(memory, plan_of(state, told(name), known(name), memory=memory)[0].info)
    assert memory.kept.given_up == 0  # that one was computed


def test_a_chunk_of_the_background_that_is_given_up_counts_for_nobody():
    state, memory, name = empty(), Memory.fresh(N), "cpu-2core-0.5b"
    put(state, 2, 1, 20_000, 0)
    plan_of(state, told(name), known(name), memory=memory)
    note_given_up(memory, NOW)
    assert memory.kept.given_up == memory.kept.given_up_ns == 0


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("lane", [0, 1])
@given(lengths=st.lists(st.integers(2, 3000), min_size=2, max_size=6))
@settings(max_examples=40)
def test_the_shortest_goes_first_and_only_the_last_of_a_tick_is_cut(name, lane, lengths):
    state, cost = empty(), known(name)
    for s, tokens in enumerate(lengths):
        put(state, s, lane, tokens, 0)
    plan, entries = plan_of(state, told(name, can_aside=False), cost)
    got = fed(plan, entries)
    order = sorted(range(len(lengths)), key=lambda s: (predict(cost, 0, 0, lengths[s], 0), s))
    assert list(got) == order[: len(got)]
    assert all(got[s] == lengths[s] for s in list(got)[:-1])


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_whoever_has_waited_long_goes_before_what_is_shorter(name):
    state, cost = empty(), known(name)
    put(state, 0, 0, 1500, 0)
    put(state, 1, 0, 16, 0)
    plan, _ = plan_of(state, told(name, can_aside=False), cost)
    assert plan.slots[0] == 1
    more_ms = predict(cost, 0, 0, 1500, 0) - predict(cost, 0, 0, 16, 0)
    state.t_submit_ns[0] -= int(1.01 * more_ms / AGED * 1e6)
    plan, _ = plan_of(state, told(name, can_aside=False), cost)
    assert plan.slots[0] == 0


@pytest.mark.parametrize("name", sorted(GIVE_UP))
def test_short_prompts_do_not_starve_a_long_one_and_do_not_wait_for_it(name):
    """Each short one is there when half of its time since the one before has gone by."""
    load, cost = Load(), known(name)
    long_ms, short_ms = predict(cost, 0, 0, 3000, 0), predict(cost, 0, 0, 25, 0)
    load.add(INTERACTIVE, 3000, 1)
    for i in range(200):
        load.add(INTERACTIVE, 25, 1, due_ms=500.0 + 2.5 * short_ms * i)
    jobs = play(load, quiet(name), n_slots=64).jobs
    first_ms = (jobs.first - jobs.due) / NS
    assert (jobs.end > 0).all()
    assert np.median(first_ms[1:]) <= LONG_TICKS * 50.0
    assert first_ms[0] <= 10.0 * long_ms


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_questions_beside_streams_are_answered_nearly_as_soon_as_alone(name):
    machine, load = quiet(name), Load()
    for i in range(2):
        load.add(INTERACTIVE, 60 + i, 3000)
    load.chain(20, INTERACTIVE, 25, 1, 1500.0, 1500.0)
    jobs = play(load, machine).jobs
    round_ms = predict(known(name), 0, 2, 0, 500)
    alone_ms = predict(known(name), 0, 0, 25, 500)
    asked = (jobs.first > 0) & (np.arange(jobs.first.size) >= 2)
    assert asked.sum() >= 5
    first_ms = ((jobs.first - jobs.due) / NS)[asked]
    assert np.median(first_ms) <= alone_ms + 2.5 * round_ms


@pytest.mark.parametrize("times", [0.8, 1.3])
def test_a_short_prompt_gets_a_tick_of_its_own_where_the_streams_are_delayed_no_longer(times):
    """``times``: what a merged tick takes, over the prompt and the streams one after the other."""
    tokens, rows = 25, 2
    cost = probed(MACHINES["gpu-dense"])
    in_turns = predict(cost, 0, 0, tokens, 0) + predict(cost, 0, rows, 0, 100)
    for _ in range(50):
        learn(cost, 0, rows, tokens, 10, times * in_turns)
    state = empty()
    for s in range(rows):
        put(state, s, 0, 100, 99, credit=2.5)
    put(state, 5, 0, tokens, 0)
    plan, entries = plan_of(state, told("gpu-dense"), cost)
    assert fed(plan, entries) == ({5: tokens} if times > 1.0 else {0: 1, 1: 1, 5: tokens})
    assert plan.info.interactive_rows == (0 if times > 1.0 else rows)


@pytest.mark.parametrize("tokens", [25, 200])
@pytest.mark.parametrize(("noticed", "aside"), [(0.9, False), (1.1, True)])
def test_a_prompt_of_which_no_reader_notices_the_tick_is_not_computed_aside(tokens, noticed, aside):
    """``noticed``: ms that the prompt takes, over the pace of readers."""
    name, state, memory = "cpu-2core-0.5b", empty(), Memory.fresh(N)
    put(state, 0, 0, 100, 99, credit=2.5)
    put(state, 5, 0, tokens, 0)
    pace = predict(known(name), 0, 0, tokens, 0) / noticed
    knobs = told(name, reading_ms=pace)
    plan, entries = plan_of(state, knobs, known(name), memory=memory)
    assert (plan.aside[0] == 5) == aside
    assert (5 in fed(plan, entries)) == (not aside)
    if aside:  # it ends where it was begun
        state.aside[5], state.n_past[5] = 1, tokens - 2
        plan, _ = plan_of(state, knobs, known(name), memory=memory)
        assert plan.aside[0] == 5
