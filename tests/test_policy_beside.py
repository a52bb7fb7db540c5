"""Prompts beside the ticks of an accelerator: what is listed, and how much of it is granted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_policy_guarded import NOW, TRAFFIC, N, empty, known, put, states, told
from tools import sim_run
from umaserve.policy.base import (
    ALL_FEATURES,
    ASIDE,
    CHUNK_BESIDE,
    FEATURES,
    FLAG_ASIDE,
    FLAG_SPENT,
    FLAGS,
    LANES,
    PREDICTED_MS,
    RUNS_BESIDE,
    SINCE_BESIDE,
    SINCE_DECODE,
    WAIT_MS,
    Memory,
    Plan,
    Tick,
)
from umaserve.policy.beside import BACK_WAIT_MS, GOING_ON, WORTH_IT
from umaserve.policy.cost import BESIDE_SIZES, CHUNK_MS, FACTOR, SEEN, CostModel
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import HARD, MARGIN, RESERVED
from umaserve.states import RUNNING

SIZES = BESIDE_SIZES.tolist()
MACHINES = ["gpu-dense", "gpu-moe"]
SOONER_MS = 10.0 * BACK_WAIT_MS  # longer than anything may wait


def beside_of(name="gpu-dense", factors=(), chunk_ms=()):
    """The costs of a machine that knows so many sizes of chunks; None = not this one."""
    cost = CostModel.unknown()
    if name:
        cost.copy_from(known(name))
    for i, factor in enumerate(factors):
        if factor is not None:
            cost.beside[i, [FACTOR, SEEN]] = factor, 4.0
    for i, ms in enumerate(chunk_ms):
        cost.beside[i, CHUNK_MS] = ms
    return cost


def knobs_of(name="gpu-dense", **changes):
    return told(name, **{"can_aside": True, "paced": True, **changes})


def tick_of(state, knobs, cost, *, number=0, now=NOW, beside=0, memory=None, free=10_000):
    """One plan: (plan, entries, slots listed to be computed beside it, tokens granted)."""
    plan, memory = Plan.empty(N), memory or fresh()
    tick = Tick(number, now, free, 500, np.inf, beside)
    entries = plan_tick(state, tick, knobs, cost, memory, TRAFFIC, plan)
    listed = plan.aside[: plan.aside.tolist().index(-1)].tolist()
    return plan, entries, listed, int(plan.info[CHUNK_BESIDE])


def fresh(ago_ms=0.0):
    """A memory in which all background was served ``ago_ms`` ago."""
    memory = Memory.fresh(N)
    memory.since_ns[:] = NOW - int(ago_ms * 1e6)
    return memory


FACTORS = st.lists(st.floats(1.0, 2.6), min_size=len(SIZES), max_size=len(SIZES))
PARTLY_KNOWN = st.lists(
    st.one_of(st.none(), st.floats(1.0, 2.6)), min_size=len(SIZES), max_size=len(SIZES)
)
# around what may be spent, and in debt
CREDITS = st.one_of(st.floats(0.9, 2.5), st.floats(-16, 2.5))
CHUNKS_MS = st.lists(st.sampled_from([0.0, 2.0, 40.0, 500.0]), max_size=len(SIZES))


@given(
    states(), st.sampled_from([None, *MACHINES]), PARTLY_KNOWN, CHUNKS_MS, st.integers(0, 1),
    st.sets(st.sampled_from(sorted(FEATURES))), st.sampled_from([0, 16, 500]),
    st.sampled_from([0.0, SOONER_MS]),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_what_is_listed_and_granted_is_always_something_that_may_be(
    state, name, factors, chunk_ms, number, without, beside, ago_ms
):
    features = ALL_FEATURES - sum(FEATURES[part] for part in without)
    knobs = knobs_of(name or "gpu-dense", features=features)
    cost = beside_of(name, factors, chunk_ms)
    plan, entries, listed, chunk = tick_of(
        state, knobs, cost, number=number, beside=beside, memory=fresh(ago_ms)
    )
    assert chunk in (0, *SIZES)
    assert chunk == 0 or listed
    faults = np.zeros(len(sim_run.FAULTS), np.int64)
    sim_run.check_plan(state, plan, entries, knobs, 10_000, faults)
    assert not faults.any(), dict(zip(sim_run.FAULTS, faults.tolist(), strict=True))
    assert len(set(listed)) == len(listed)
    runs = state.state == RUNNING
    left = state.n_tokens - state.n_past
    prompts = runs & (left > 1) & (state.isolate == 0)
    assert set(listed) <= set(np.flatnonzero(prompts & (state.aside >= 0)).tolist())
    if not features & ASIDE or all(factor and factor > HARD for factor in factors):
        assert not listed
    interactive = (state.lane == 0) | (not features & LANES)
    if not (runs & interactive & (left == 1) & (state.isolate == 0)).any():
        assert not [s for s in listed if interactive[s] and state.aside[s] == 0]
    if features & LANES:
        assert [int(state.lane[s]) for s in listed] == sorted(int(state.lane[s]) for s in listed)
    # whoever is not listed is not forgotten
    if runs.any() and not state.isolate[runs].any():
        others = set(np.flatnonzero(runs).tolist()) - set(listed)
        assert entries > 0 if others else entries == 0 and plan.info[WAIT_MS] > 0.0


@pytest.mark.parametrize("why", ["feature off", "too slow", "cannot"])
def test_prompts_that_are_not_for_the_second_context_are_the_ticks_own(why):
    state, knobs, cost = empty(), knobs_of(), beside_of(factors=[1.05] * 6)
    put(state, 0, 0, 100, 99)
    put(state, 4, 1, 3000, 0)
    put(state, 5, 1, 3000, 100)
    state.aside[4] = 1  # it was beside the ticks until now
    assert tick_of(state, knobs, cost)[2] == [4, 5]
    if why == "feature off":
        knobs = knobs_of(features=ALL_FEATURES - ASIDE)
    elif why == "too slow":
        cost = beside_of(factors=[HARD + 0.01] * 6)
    else:
        state.aside[4:6] = -1
    plan, entries, listed, chunk = tick_of(state, knobs, cost)
    assert listed == [] and chunk == 0
    assert {4, 5} & set(plan.slots[:entries].tolist())


def test_an_interactive_prompt_stays_with_the_ticks_while_nobody_interactive_decodes():
    state, cost = empty(), beside_of(factors=[1.05] * 6)
    put(state, 2, 0, 3000, 0)
    put(state, 5, 1, 3000, 0)
    plan, entries, listed, chunk = tick_of(state, knobs_of(), cost)
    assert (plan.slots[:entries].tolist(), listed, chunk) == ([2], [5], 0)
    # background waits for it, though not for ever
    assert tick_of(state, knobs_of(), cost, memory=fresh(SOONER_MS))[2:] == ([5], SIZES[0])
    state.aside[2] = 1  # one that is beside the ticks already goes on there
    plan, entries, listed, chunk = tick_of(state, knobs_of(), cost)
    assert (entries, listed) == (0, [2, 5])
    assert chunk > 0


@given(
    FACTORS, st.lists(st.tuples(CREDITS, st.sampled_from([0.0, 1.05, 1.5, 3.0])),
                      min_size=1, max_size=3),
    st.integers(0, 2), st.sampled_from([0, 16, 500]), st.floats(0, 3000),
    st.sampled_from([1.1, 1.2, 2.0]), st.sampled_from(MACHINES), CHUNKS_MS,
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_beside_streams_a_background_chunk_fits_the_cap_or_was_paid_for(
    factors, streams, decoders, beside, ago_ms, cap, name, chunk_ms
):
    state, cost = empty(), beside_of(name, factors, chunk_ms)
    for s, (credit, own_cap) in enumerate(streams):
        put(state, s, 0, 100, 99, credit=credit, cap=own_cap)
    for s in range(4, 4 + decoders):
        put(state, s, 1, 100, 99, credit=-5.0)
    put(state, 8, 1, 3000, 0)
    plan, _, listed, chunk = tick_of(
        state, knobs_of(name, latency_cap=cap), cost, beside=beside, memory=fresh(ago_ms)
    )
    assert bool(listed) == (min(factors) <= HARD)
    if not listed:
        return
    limit = 1.0 + (min([cap, *(own for _, own in streams if own)]) - 1.0) * MARGIN
    fits = [size for size, factor in zip(SIZES, factors, strict=True) if factor <= limit]
    credit = min(credit for credit, _ in streams)
    spent = bool(int(plan.info[FLAGS]) & FLAG_SPENT)
    if fits and credit < GOING_ON:
        assert chunk == 0
    elif fits:
        # with decoders in the background they take turns
        assert chunk == fits[-1] or chunk == 0 and decoders
        assert not spent or decoders  # which may ride on the budget
    elif chunk:
        assert beside == 0 and credit >= 1.0 and spent
        aged = chunk == SIZES[0] and ago_ms > BACK_WAIT_MS
        i = SIZES.index(chunk)
        rich = credit >= 1.0 + RESERVED and factors[i] <= HARD and chunk_ms[i : i + 1] > [0.0]
        assert rich or aged
    elif beside == 0:
        payable = any(ms and f <= HARD for ms, f in zip(chunk_ms, factors, strict=False))
        assert credit < 1.0 + RESERVED or not payable


@pytest.mark.parametrize(("chunk_ms", "granted"), [([], 0), ([10.0], 16), ([10.0, 12.0, 14.0], 32)])
def test_what_is_paid_for_is_of_a_size_that_is_known(chunk_ms, granted):
    """Sizes that no tick ran beside have no factor to reckon with."""
    state = empty()
    put(state, 0, 0, 100, 99, credit=2.5)
    put(state, 4, 1, 3000, 0)
    cost = beside_of(factors=[1.5, 1.6, None, None, None, None], chunk_ms=chunk_ms)
    assert tick_of(state, knobs_of(), cost)[3] == granted


@given(PARTLY_KNOWN, st.floats(-16, 2.5), st.sampled_from([0, 16, 500]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_interactive_prompt_beside_streams_always_gets_a_chunk(factors, credit, beside, also):
    if not any(factor and factor <= HARD for factor in factors):
        factors = [None, *factors[1:]]  # what is known rules all of it out
    state = empty()
    put(state, 0, 0, 100, 99, credit=credit)
    put(state, 3, 0, 900, 0)
    if also:
        put(state, 2, 1, 3000, 0)
        put(state, 4, 1, 100, 99)
    _, _, listed, chunk = tick_of(state, knobs_of(), beside_of(factors=factors), beside=beside)
    assert listed == ([3, 2] if also else [3])
    assert chunk in SIZES
    factor = factors[SIZES.index(chunk)]
    assert factor is None or factor <= WORTH_IT or chunk == SIZES[0]


@pytest.mark.parametrize("lane", [0, 1])
@given(chunk_ms=CHUNKS_MS, credit=st.floats(-16, 2.5))
@settings(max_examples=50, deadline=None)
def test_with_nothing_but_prompts_aside_the_tick_waits_for_them(lane, chunk_ms, credit):
    state, knobs = empty(), knobs_of(tick_budget_ms=50.0)
    put(state, 1, lane, 3000, 500, credit=credit)
    state.aside[1] = 1
    plan, entries, listed, chunk = tick_of(state, knobs, beside_of(chunk_ms=chunk_ms))
    assert (entries, listed) == (0, [1])
    assert plan.info[WAIT_MS] > 0.0
    assert chunk in SIZES
    if any(chunk_ms):
        i = SIZES.index(chunk)
        assert i == 0 or i >= len(chunk_ms) or chunk_ms[i] <= 2.0 * knobs.tick_budget_ms


def served_in(seconds, state, cost, *, chunk_ms, most_credit=None):
    """Simulate: longest ns without (a decoder in the background, a chunk begun), and how many."""
    memory, now, ends, running = fresh(), NOW, 0, 0
    last, longest, counts = [NOW, NOW], [0, 0], [0, 0]
    number = 0
    while now < NOW + seconds * 10**9:
        if now >= ends:
            running = 0
        plan, entries, _, chunk = tick_of(
            state, knobs_of(), cost, number=number, now=now, beside=running, memory=memory
        )
        if chunk and not running:
            running, ends = chunk, now + int(chunk_ms * 1e6)
            longest[1] = max(longest[1], now - last[1])
            last[1] = now
            counts[1] += 1
        number += 1
        now += int(max(plan.info[PREDICTED_MS], 1.0) * 1e6)
        slots = plan.slots[:entries]
        if (state.lane[slots] == 1).any():
            longest[0] = max(longest[0], now - last[0])
            last[0] = now
            counts[0] += 1
        for s in slots.tolist():
            state.t_last_ns[s], state.served[s] = now, number
        if most_credit is not None:
            state.credit[:] = most_credit
    return [max(a, now - b) for a, b in zip(longest, last, strict=True)], counts


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("factor", [1.02, 1.17])
def test_prompts_and_decoders_in_the_background_share(name, factor):
    state = empty()
    put(state, 0, 0, 100, 99)
    put(state, 3, 1, 100, 99)
    put(state, 4, 1, 100, 99)
    put(state, 8, 1, 5000, 0)
    cost = beside_of(name, [factor] * 6, [30.0] * 6)
    longest, counts = served_in(10, state, cost, chunk_ms=30.0)
    assert max(longest) < 2 * 10**9
    assert min(counts) > 50


@pytest.mark.parametrize(
    ("decoders_ms", "prompts_ms", "chunk_ms", "granted"),
    [(10, 50, 30.0, True), (100, 50, 30.0, False), (100, 61, 30.0, True), (100, 50, 20.0, True)],
)
def test_who_in_the_background_waited_longer_goes_on(
    decoders_ms, prompts_ms, chunk_ms, granted
):
    state, memory = empty(), fresh()
    put(state, 0, 0, 100, 99)
    put(state, 3, 1, 100, 99)
    put(state, 8, 1, 5000, 0)
    memory.since_ns[SINCE_DECODE] -= decoders_ms * 10**6
    memory.since_ns[SINCE_BESIDE] -= prompts_ms * 10**6
    cost = beside_of(factors=[1.05] * 6, chunk_ms=[chunk_ms] * 6)
    assert tick_of(state, knobs_of(), cost, memory=memory)[3] == (SIZES[-1] if granted else 0)


@pytest.mark.parametrize("factor", [1.3, HARD])
@pytest.mark.parametrize("decoders", [0, 2])
def test_background_starves_not_when_noise_takes_all_credit_but_the_first(factor, decoders):
    state = empty()
    put(state, 0, 0, 100, 99, credit=1.0)
    for s in range(3, 3 + decoders):
        put(state, s, 1, 100, 99)
    put(state, 8, 1, 5000, 0)
    cost = beside_of(factors=[factor] * 6, chunk_ms=[5.0] * 6)
    longest, counts = served_in(10, state, cost, chunk_ms=5.0, most_credit=1.0)
    assert longest[1] < (BACK_WAIT_MS + 100.0) * 1e6
    # paid for by age alone, it is no more often
    assert counts[1] <= 10
    assert not decoders or longest[0] < 2 * 10**9


@pytest.mark.parametrize(("beside", "i"), [(16, 0), (40, 1), (500, 4), (512, 5), (3, 0)])
def test_a_tick_beside_a_chunk_is_expected_to_take_longer(beside, i):
    state, factors = empty(), [1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    put(state, 0, 0, 100, 99)
    cost = beside_of(factors=factors)
    alone = tick_of(state, knobs_of(), cost)[0].info.copy()
    info = tick_of(state, knobs_of(), cost, beside=beside)[0].info
    assert alone[RUNS_BESIDE] == 0.0
    assert info[RUNS_BESIDE] == factors[i]
    assert info[PREDICTED_MS] == pytest.approx(factors[i] * alone[PREDICTED_MS])
    assert int(info[FLAGS]) & FLAG_ASIDE and not int(alone[FLAGS]) & FLAG_ASIDE
    # of one that was never seen, nothing is expected
    info = tick_of(state, knobs_of(), beside_of(), beside=beside)[0].info
    assert info[PREDICTED_MS] == alone[PREDICTED_MS]
    assert info[RUNS_BESIDE] == 1.0


def test_time_since_the_last_chunk_runs_only_while_somebody_waits():
    state, memory = empty(), fresh(SOONER_MS)
    put(state, 0, 0, 100, 99, credit=1.0)
    cost = beside_of(factors=[1.5] * 6, chunk_ms=[5.0] * 6)
    tick_of(state, knobs_of(), cost, memory=memory)
    assert memory.since_ns[SINCE_BESIDE] == NOW
    put(state, 8, 1, 5000, 0)
    later = NOW + int(0.5 * BACK_WAIT_MS * 1e6)
    assert tick_of(state, knobs_of(), cost, now=later, memory=memory)[3] == 0
    assert memory.since_ns[SINCE_BESIDE] == NOW
    later = NOW + int(1.1 * BACK_WAIT_MS * 1e6)
    assert tick_of(state, knobs_of(), cost, now=later, memory=memory)[3] == SIZES[0]
    assert memory.since_ns[SINCE_BESIDE] == later
