"""The guarded policy: what its plans may be, tick by tick."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import (
    MACHINES,
    NOW,
    TRAFFIC,
    N,
    empty,
    known,
    plan_of,
    put,
    states,
    told,
)
from tools import sim_run
from tools.sim_machine import tick_ms
from umaserve.policy.base import (
    ALL_FEATURES,
    FEATURES,
    FLAG_SPENT,
    SINCE_ANYBODY,
    Memory,
    Plan,
    Tick,
)
from umaserve.policy.cost.model import CostModel, learn
from umaserve.policy.cost.prediction import largest_chunk, predict
from umaserve.policy.cost.sweet_spot import WORTH, find_rounds
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import EARNED, LEAST_CREDIT, MOST_CREDIT, settle_credit
from umaserve.policy.pace import worthwhile_chunk
from umaserve.policy.without_streams import LONGER_TICKS, LONGEST_TICKS
from umaserve.wire.states import RUNNING, WAITING


@given(
    states(), st.sampled_from([None, *sorted(MACHINES)]), st.integers(0, 5000),
    st.sampled_from([1, 8, 100, 2048]), st.sampled_from([0, 1, 2, 5]),
    st.sets(st.sampled_from(sorted(FEATURES))), st.integers(0, 1),
)  # fmt: skip
@settings(max_examples=400)
def test_a_plan_is_valid_and_never_empty_while_something_can_run(
    state, name, free, n_batch, max_merge, without, number
):
    cost = known(name) if name else CostModel.unknown()
    features = ALL_FEATURES - sum(FEATURES[part] for part in without)
    knobs = told(name or "gpu-dense", n_batch=n_batch, max_merge=max_merge, features=features)
    if not knobs.can_aside:
        state.aside[:] = np.minimum(state.aside, 0)
    plan, entries = plan_of(state, knobs, cost, free=free, number=number)
    faults = np.zeros(len(sim_run.FAULTS), np.int64)
    sim_run.check_plan(state, plan, entries, knobs, free, faults)
    assert not faults.any(), dict(zip(sim_run.FAULTS, faults.tolist(), strict=True))
    listed = {int(s) for s in plan.aside[: plan.aside.tolist().index(-1)]}
    running = set(np.flatnonzero(state.state == RUNNING).tolist())
    assert listed <= running
    if running - listed:
        assert entries > 0


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_interactive_decoders_ride_in_every_tick_and_passengers_fit_the_cap(name):
    cost, knobs = known(name), told(name, can_aside=False)
    state = empty()
    put(state, 0, 0, 100, 99, credit=0.9)
    put(state, 5, 1, 2000, 0)
    plan, entries = plan_of(state, knobs, cost)
    assert 0 in plan.slots[:entries]
    prompt = int(plan.counts[:entries][plan.slots[:entries] == 5].sum())
    alone = tick_ms(MACHINES[name], 0, 1, 0, 500)
    assert tick_ms(MACHINES[name], 0, 1, prompt, 500) <= 1.2 * alone * 1.03


@pytest.mark.parametrize("name", sorted(MACHINES))
@given(credit=st.floats(-1, 2.5), back=st.integers(0, 6), prompts=st.integers(0, 3))
@settings(max_examples=60)
def test_background_is_late_only_on_credit_and_by_no_more_than_a_chunk(name, credit, back, prompts):
    cost, knobs = known(name), told(name, can_aside=False)
    state = empty()
    put(state, 0, 0, 100, 99, credit=credit)
    for s in range(1, 1 + back):
        put(state, s, 1, 100, 99)
    for s in range(7, 7 + prompts):
        put(state, s, 1, 2000, 0)
    plan, entries = plan_of(state, knobs, cost)
    base = plan.info.baseline_ms
    assert base > 0.0
    if credit < 1.0:
        assert plan.info.predicted_ms <= 1.2 * base * 1.001
        assert not plan.info.marks & FLAG_SPENT
    # ticks without the stream's row delay it by as much
    pause, alone = plan.info.predicted_ms, predict(cost, 0, 1, 0, 500)
    if 0 not in plan.slots[:entries]:
        pause += alone
    chunk = worthwhile_chunk(cost, 0.0, knobs.n_batch)
    longest = max(25.0, 2.0 * alone, 1.2 * base, alone + predict(cost, 0, 0, chunk, 0.0))
    assert pause <= longest * 1.001
    assert plan.info.allowed_ms <= longest * 1.001


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_background_prompts_fill_the_tick_budget_when_nobody_interactive_is_there(name):
    cost, knobs = known(name), told(name, can_aside=False, abortable=False)
    state = empty()
    put(state, 3, 1, 5000, 0)
    plan, entries = plan_of(state, knobs, cost)
    assert entries == 1
    tokens = int(plan.counts[0])
    if tokens < knobs.n_batch:
        predicted = plan.info.predicted_ms
        assert predicted <= knobs.tick_budget_ms
        # shorter only where more would hardly be cheaper by the token
        if predicted < 0.5 * knobs.tick_budget_ms:
            whole = largest_chunk(cost, 0, 0, 0, 0, knobs.tick_budget_ms, knobs.n_batch)
            assert tokens / predicted >= 0.8 * whole / predict(cost, 0, 0, whole, 0)


@pytest.mark.parametrize("calm_ms", [0.0, 1200.0, 9e3])
def test_a_tick_that_can_be_given_up_may_be_as_long_as_nobody_came(calm_ms):
    cost, memory = known("cpu-2core-0.5b"), Memory.fresh(N)
    knobs, state = told("cpu-2core-0.5b", can_aside=False), empty()
    budget_ms = knobs.tick_budget_ms
    put(state, 3, 1, 5000, 0)
    memory.since_ns[SINCE_ANYBODY] = NOW - int(calm_ms * 1e6)
    plan, entries = plan_of(state, knobs, cost, memory=memory)
    limit_ms = min(max(calm_ms, LONGER_TICKS * budget_ms), LONGEST_TICKS * budget_ms)
    assert entries == 1 and plan.info.predicted_ms <= limit_ms
    assert plan.counts[0] == largest_chunk(cost, 0, 0, 0.0, 0.0, limit_ms, int(TRAFFIC.n_ubatch))
    # that it is given up costs no more than what was quiet
    assert plan.info.abort_ms > 0.0
    never = knobs._replace(abortable=False)
    assert plan_of(state, never, cost, memory=memory)[0].info.predicted_ms <= budget_ms
    put(state, 0, 0, 50, 0)  # now somebody does
    plan_of(state, knobs, cost, memory=memory)
    assert memory.since_ns[SINCE_ANYBODY] == NOW


def test_the_interactive_prompt_goes_before_the_background_one():
    state = empty()
    put(state, 2, 1, 4000, 0)
    put(state, 7, 0, 4000, 0)
    plan, entries = plan_of(state, told(), known("gpu-dense"))
    taken = {int(plan.slots[e]): int(plan.counts[e]) for e in range(entries)}
    assert taken[7] > taken.get(2, 0)
    assert plan.slots[0] == 7


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("decoders", [0, 2])
def test_interactive_prompts_without_end_leave_background_its_minimum(name, decoders):
    """At least a slice in about a second for prompts, and for decoders where there are some."""
    cost, knobs = known(name), told(name, can_aside=False)
    memory, plan, state = Memory.fresh(N), Plan.empty(N), empty()
    put(state, 0, 0, 100_000, 0)
    put(state, 1, 1, 5000, 0)
    for s in range(2, 2 + decoders):
        put(state, s, 1, 100, 99)
    now, last, longest = NOW, {}, {}
    for number in range(2000):
        view = Tick(number, now, 200_000, 500, np.inf)
        entries = plan_tick(state, view, knobs, cost, memory, TRAFFIC, plan)
        now += int(max(plan.info.predicted_ms, 1.0) * 1e6)
        for s in plan.slots[:entries]:
            longest[s] = max(longest.get(s, 0), now - last.get(s, NOW))
            last[s] = now
        if now > NOW + 20 * 10**9:
            break
    assert set(longest) == set(range(2 + decoders))
    assert all(longest[s] < 2 * 10**9 for s in range(1, 2 + decoders))


@pytest.mark.parametrize("left", [1.0, 1e8, 1e12, np.inf])
def test_a_budget_below_the_weights_does_not_cut_a_prompt_into_single_tokens(left):
    state = empty()
    put(state, 3, 1, 5000, 0)
    plan = Plan.empty(N)
    tick = Tick(0, NOW, 10_000, 0, left)
    entries = plan_tick(state, tick, told(), known("gpu-dense"), Memory.fresh(N), TRAFFIC, plan)
    # TRAFFIC's weights are 5e8 bytes, read once for 512 tokens
    assert entries == 1
    assert plan.counts[0] >= 100


@pytest.mark.parametrize("wide", [True, False])
def test_attention_costs_by_the_cells_that_the_backend_reads(wide):
    cost = CostModel.unknown()
    rng = np.random.default_rng(2)
    for _ in range(500):
        past = float(rng.uniform(0, 9000))
        learn(cost, 0, 1, 0, past, 10.0 + past / 1000.0)
    state = empty()
    put(state, 0, 0, 200, 199)
    for s in range(1, 5):
        put(state, s, 1, 2001, 2000)
        state.state[s] = WAITING
    knobs = told(can_aside=False, abortable=False, wide_reads=wide)
    plan, entries = plan_of(state, knobs, cost, kv=8199)
    assert plan.slots[:entries].tolist() == [0]
    assert plan.info.predicted_ms == pytest.approx(18.2 if wide else 10.2, rel=0.1)


@given(st.lists(st.floats(1.0, 200.0), min_size=1, max_size=8), st.integers(1, 8))
@settings(max_examples=150)
def test_rounds_are_as_short_as_the_best_partition(costs, most):
    n = len(costs)
    most = min(most, n)
    cost = CostModel.unknown()
    for rows, ms in enumerate(costs, 1):
        for _ in range(3):
            learn(cost, 0, rows, 0, 0, ms)
    memory = Memory.fresh(n)
    find_rounds(memory, cost, 0, n, most, 0, True)
    ms = [predict(cost, 0, rows, 0, 0) for rows in range(n + 1)]

    def best(k, least):
        """By enumeration of all partitions in parts of at least ``least``."""
        if k == 0:
            return 0.0
        parts = [g for g in range(least, min(k, most) + 1) if k - g == 0 or k - g >= g]
        return min((ms[g] + best(k - g, g) for g in parts), default=np.inf)

    for k in range(1, n + 1):
        total = 0.0
        left = k
        while left:
            group = int(memory.group[0, left])
            assert 1 <= group <= most
            total += ms[group]
            left -= group
        assert memory.round_ms[0, k] == pytest.approx(total)
        # a split must be worth it once at every step, so a round is at most so far off
        assert best(k, 1) - 1e-9 <= total <= best(k, 1) / WORTH**k + 1e-9
    find_rounds(memory, cost, 0, n, most, 0, False)
    assert memory.round_ms[0, n] >= best(n, 1) - 1e-9


@given(st.lists(st.floats(0.0, 100.0), max_size=400), st.floats(1.0, 3.0), st.floats(0.1, 50.0))
@settings(max_examples=80)
def test_credit_stays_in_its_bounds_and_counts_slow_tokens(gaps, cap, base):
    credit = 1.0
    for gap in gaps:
        before = credit
        credit, slow = settle_credit(credit, 0.0, cap, base, gap)
        assert slow == (gap > cap * base)
        assert LEAST_CREDIT <= credit <= MOST_CREDIT
        expected = before - 1.0 if slow else before + EARNED
        assert credit == pytest.approx(min(max(expected, LEAST_CREDIT), MOST_CREDIT))
