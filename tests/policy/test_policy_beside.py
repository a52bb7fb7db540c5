"""Prompts beside the ticks of an accelerator: what is listed, in which chunks, for how long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planned_beside import (
    CAPS,
    CREDITS,
    NEARLY,
    Planned,
    cost_of,
    fresh,
    gap_of,
    knobs_of,
    streaming,
    waited,
)
from tests.support.policy_states import NOW, N, empty, put, states
from tools import sim_run
from umaserve.policy.accelerator.beside import SHORT, SPARE, WORTH_IT
from umaserve.policy.base import (
    ALL_FEATURES,
    ALL_THE_TIME,
    ASIDE,
    BACK_WAIT_MS,
    FEATURES,
    FLAG_ASIDE,
    FLAG_GUARDED,
    FLAG_SPENT,
    GUARD,
    KIND_DECODE,
    LANES,
    SINCE_BESIDE,
    SINCE_DECODE,
    SINCE_PROMPT,
)
from umaserve.policy.cost.model import CHUNK_SIZES, predict
from umaserve.policy.latency_guard import (
    EARNED_PACED,
    HARD,
    MARGIN,
    MOST_CREDIT,
    RESERVED,
    earned,
    settle_credit,
)
from umaserve.wire.states import RUNNING

SIZES = CHUNK_SIZES.tolist()
FULL = MOST_CREDIT - EARNED_PACED  # credit that would be lost if it were not spent
MACHINES = ["gpu-dense", "gpu-moe"]
SOONER_MS = 5.0 * BACK_WAIT_MS  # longer than anything may wait


PARTS = st.lists(
    st.sampled_from([0.0, 0.01, 0.5, 2.0, 5.0, 9.0, 40.0]), min_size=len(SIZES), max_size=len(SIZES)
)
AGO_MS = st.integers(0, 20).map(lambda n: n / 8)  # which ns say exactly
STREAMS = st.lists(st.tuples(CREDITS, CAPS), min_size=1, max_size=3)


@given(
    states(), st.sampled_from([None, *MACHINES]), PARTS, st.integers(0, 1),
    st.sets(st.sampled_from(sorted(FEATURES))), st.sampled_from([0.0, SOONER_MS]),
    st.sampled_from([0, 1, 8]),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_what_is_listed_and_granted_is_always_something_that_may_be(
    state, name, parts, number, without, ago_ms, holdoff
):
    features = ALL_FEATURES - sum(FEATURES[part] for part in without)
    knobs = knobs_of(name or "gpu-dense", features=features)
    memory = fresh(ago_ms)
    memory.kept.holdoff = holdoff
    got = Planned(state, knobs, cost_of(name, parts), number=number, memory=memory)
    plan, listed = got.plan, got.listed
    assert got.chunk in ((SIZES) if listed else (0,))
    assert 0.0 <= got.slice_ms <= ALL_THE_TIME
    assert listed or got.slice_ms == 0.0
    faults = np.zeros(len(sim_run.FAULTS), np.int64)
    sim_run.check_plan(state, plan, got.entries, knobs, 10_000, faults)
    assert not faults.any(), dict(zip(sim_run.FAULTS, faults.tolist(), strict=True))
    assert len(set(listed)) == len(listed)
    runs = state.state == RUNNING
    left = state.n_tokens - state.n_past
    alone = runs & (state.isolate == 0)
    assert set(listed) <= set(np.flatnonzero(alone & (left > 1) & (state.aside >= 0)).tolist())
    assert features & ASIDE or not listed
    interactive = (state.lane == 0) | (not features & LANES)
    if not (alone & interactive & (left == 1)).any():
        assert not [s for s in listed if interactive[s] and state.aside[s] == 0]
    if features & LANES:
        assert [int(state.lane[s]) for s in listed] == sorted(int(state.lane[s]) for s in listed)
    # whoever is not listed is not forgotten, and who is has time of his own or will have
    if runs.any() and not state.isolate[runs].any():
        others = set(np.flatnonzero(runs).tolist()) - set(listed)
        if others:
            assert got.entries > 0
        else:
            assert got.entries == 0 and got.info.wait_ms > 0.0 and got.slice_ms == ALL_THE_TIME


@pytest.mark.parametrize("why", ["feature off", "cannot"])
def test_prompts_that_are_not_for_the_second_context_are_the_ticks_own(why):
    state, knobs, cost = empty(), knobs_of(), cost_of(parts=[0.1] * len(SIZES))
    put(state, 0, 0, 100, 99)
    put(state, 4, 1, 3000, 0)
    put(state, 5, 1, 3000, 100)
    state.aside[4] = 1  # it was beside the ticks until now
    assert Planned(state, knobs, cost).listed == [5, 4]  # the shorter one first
    if why == "feature off":
        knobs = knobs_of(features=ALL_FEATURES - ASIDE)
    else:
        state.aside[4:6] = -1
    got = Planned(state, knobs, cost)
    assert (got.listed, got.chunk, got.slice_ms) == ([], 0, 0.0)
    assert {4, 5} & set(got.slots)
    assert not got.flags & FLAG_ASIDE


@given(
    STREAMS, st.integers(0, 2), st.sampled_from([0.0, 0.5 * BACK_WAIT_MS, SOONER_MS]),
    st.sampled_from([1.01, 1.2, 2.0, 3.0]), st.sampled_from(MACHINES), AGO_MS,
    st.booleans(), st.sampled_from([0, 0, 3]), st.sampled_from([1e-3, 40.0]),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_a_slice_beside_streams_is_what_the_cap_leaves_or_was_paid_for(
    streams, decoders, beside_ms, cap, name, ago_ms, waits, holdoff, part_ms
):
    state = streaming(streams, ago_ms)
    for s in range(4, 4 + decoders):
        put(state, s, 1, 100, 99, credit=-1.0)
    put(state, 8, 0 if waits else 1, 3000, 0)
    memory = waited(beside_ms)
    memory.kept.holdoff = holdoff
    knobs = knobs_of(name, latency_cap=cap)
    got = Planned(state, knobs, cost_of(name, [part_ms] * len(SIZES)), memory=memory)
    base, gap = got.base_ms, gap_of(streams, cap)
    assert got.listed == [8] and base > 0.0
    within_cap = max((gap - 1.0) * base - ago_ms, 0.0)
    within_budget = max((max(HARD, gap) - 1.0) * base - ago_ms, 0.0)
    spent = bool(got.flags & FLAG_SPENT)
    credit = min(credit for credit, _ in streams)
    slice_ms = got.slice_ms
    assert slice_ms <= within_budget * NEARLY
    if holdoff:
        assert slice_ms == 0.0
    elif slice_ms > within_cap * NEARLY and waits:
        # somebody waits for a first token: more, though not as much as there could be
        assert slice_ms <= (WORTH_IT - 1.0) * base * NEARLY
        assert not spent or set(got.slots) & {4, 5}  # decoders, with what that leaves
    elif slice_ms > within_cap * NEARLY:
        late = beside_ms > BACK_WAIT_MS
        fits = part_ms <= within_cap - SPARE * base
        paid = credit >= 1.0 + RESERVED and not fits or credit >= FULL
        assert spent and (paid or late and credit >= 1.0)
    elif not spent:
        # nothing was held back, unless decoders in the background have it
        served = set(got.slots) & {4, 5}
        ceiling = max(knobs.tick_budget_ms - got.info.predicted_ms, 0.0)
        usual = min(within_cap, ceiling) - SPARE * base
        assert slice_ms >= usual / NEARLY - 1e-9 or served
    if slice_ms == 0.0 and not set(got.slots) & {4, 5}:
        assert got.flags & FLAG_GUARDED
    # nobody uses the same room again
    assert (
        got.info.predicted_ms + slice_ms + ago_ms
        <= max(max(HARD, gap) * base, got.info.predicted_ms + ago_ms) * NEARLY
    )


@given(STREAMS, st.integers(0, 2), st.integers(0, 2), st.floats(0, 2000), st.booleans())
@settings(max_examples=300, deadline=None)
def test_passengers_have_what_the_slice_leaves(streams, decoders, prompts, beside_ms, waits):
    state = streaming(streams)
    for s in range(4, 4 + decoders):
        put(state, s, 1, 100, 99)
    for s in range(6, 6 + prompts):  # the ticks' own
        put(state, s, s % 2, 900, 100)
        state.aside[s] = -1
    put(state, 8, 0 if waits else 1, 3000, 0)
    got = Planned(state, knobs_of(), cost_of(parts=[0.1] * len(SIZES)), memory=waited(beside_ms))
    base, gap = got.base_ms, gap_of(streams, 1.2)
    together = got.slice_ms + got.info.predicted_ms
    assert together <= max(HARD, gap) * base * NEARLY
    if not got.flags & FLAG_SPENT and not waits:
        assert together <= gap * base * NEARLY


@given(
    st.floats(-1, 2.5), st.sampled_from([0.0, 0.9, 1.1]), st.booleans(), st.sampled_from(MACHINES)
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_background_spends_credit_where_no_part_fits_or_it_waited_or_there_is_plenty(
    credit, share, fits, name
):
    state = streaming([(credit, 0.0)])
    put(state, 8, 1, 3000, 0)
    parts = [1e-3 if fits else 40.0] * len(SIZES)
    memory = waited(share * BACK_WAIT_MS)
    got = Planned(state, knobs_of(name), cost_of(name, parts), memory=memory)
    spends = credit >= 1.0 + RESERVED and not fits or credit >= FULL
    spends = spends or credit >= 1.0 and share > 1.0
    longest = HARD - 1.0 if spends else gap_of([(credit, 0.0)], 1.2) - 1.0 - SPARE
    assert got.slice_ms == pytest.approx(longest * got.base_ms)
    assert bool(got.flags & FLAG_SPENT) == spends


@given(credit=st.floats(-1, 2.5), lane=st.integers(0, 1), decoder=st.booleans(), parts=PARTS)
@settings(max_examples=100, deadline=None)
def test_with_nobody_interactive_to_disturb_prompts_have_all_the_time(credit, lane, decoder, parts):
    state = empty()
    put(state, 1, lane, 3000, 500, credit=credit)
    state.aside[1] = 1
    if decoder:
        put(state, 4, 1, 100, 99)
    got = Planned(state, knobs_of(), cost_of(parts=parts))
    assert (got.listed, got.chunk, got.slice_ms) == ([1], SIZES[-1], ALL_THE_TIME)
    assert got.slots == ([4] if decoder else [])
    # with nothing but prompts aside the tick waits for them
    assert (got.info.wait_ms > 0.0) == (not decoder)


@pytest.mark.parametrize("name", MACHINES)
def test_short_prompts_ride_with_decoders_where_nobody_is_interactive(name):
    state = empty()
    for s in range(3):
        put(state, s, 1, 100, 99)
    for s, tokens in ((4, SHORT), (5, SHORT + 1), (6, 16), (7, 16)):
        put(state, s, 1, tokens, 0)
    state.aside[7] = 1  # begun beside the ticks already
    got = Planned(state, knobs_of(name), cost_of(name))
    assert set(got.slots) == {0, 1, 2, 4, 6}
    assert set(got.listed) == {5, 7}
    # beside a stream, or with no decoder to ride with, all of them are computed in their slices
    for lane, tokens in ((0, 100), (1, 3000)):
        for s in range(3):
            put(state, s, lane, tokens, 99)
        got = Planned(state, knobs_of(name), cost_of(name))
        assert {4, 5, 6, 7} <= set(got.listed)


def test_background_waits_for_an_interactive_prompt_in_the_ticks_though_not_for_ever():
    state, cost, knobs = empty(), cost_of(parts=[0.1] * len(SIZES)), knobs_of()
    put(state, 2, 0, 3000, 0)
    put(state, 5, 1, 3000, 0)
    memory = fresh()
    for ms, slice_ms in [
        (0.0, 0.0), (0.5, 0.0), (0.99, 0.0), (1.01, knobs.tick_budget_ms), (1.02, 0.0),
        (2.0, 0.0), (2.02, knobs.tick_budget_ms), (2.03, 0.0),
    ]:  # fmt: skip
        now = NOW + int(ms * BACK_WAIT_MS * 1e6)
        got = Planned(state, knobs, cost, now=now, memory=memory)
        assert (got.slots, got.listed, got.slice_ms) == ([2], [5], slice_ms)
        assert bool(got.flags & FLAG_GUARDED) == (slice_ms == 0.0)
    got = Planned(state, knobs_of(features=ALL_FEATURES - FEATURES["ageing"]), cost,
                  memory=fresh(SOONER_MS))  # fmt: skip
    assert got.slice_ms == 0.0
    state.aside[2] = 1  # one that is beside the ticks already goes on there
    got = Planned(state, knobs, cost)
    assert (got.entries, got.listed, got.slice_ms) == (0, [2, 5], ALL_THE_TIME)


@given(STREAMS, st.integers(0, 2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_without_the_guard_prompts_have_all_the_time_beside_streams_too(streams, decoders, waits):
    state = streaming(streams)
    for s in range(4, 4 + decoders):
        put(state, s, 1, 100, 99)
    put(state, 8, 0 if waits else 1, 3000, 0)
    knobs = knobs_of(features=ALL_FEATURES - GUARD)
    got = Planned(state, knobs, cost_of(parts=[0.1] * len(SIZES)), memory=waited(10.0))
    assert (got.listed, got.slice_ms) == ([8], ALL_THE_TIME)
    assert set(range(len(streams))) <= set(got.slots)


def test_the_promise_to_the_most_demanding_stream_counts():
    for caps, strictest in [
        ((0.0, 0.0), 1.5), ((0.0, 1.1), 1.1), ((1.1, 0.0), 1.1), ((3.0, 0.0), 1.5),
    ]:  # fmt: skip
        state = streaming([(0.0, cap) for cap in caps])
        put(state, 8, 1, 3000, 0)
        got = Planned(state, knobs_of(latency_cap=1.5), cost_of())
        assert got.slice_ms == pytest.approx(((strictest - 1.0) * MARGIN - SPARE) * got.base_ms)


# --- the size of a chunk ---------------------------------------------------------------------


@given(
    # of a larger chunk no part is shorter; who knows them all has no step to take
    st.lists(st.floats(0.001, 3.0), min_size=len(SIZES), max_size=len(SIZES)).map(sorted),
    st.booleans(), CREDITS,
    st.sampled_from([1.05, 1.2, 3.0]), st.sampled_from(MACHINES),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_part_of_a_chunk_takes_longer_than_a_slice_if_there_is_such_a_size(
    parts, waits, credit, cap, name
):
    state = streaming([(credit, 0.0)])
    put(state, 8, 0 if waits else 1, 3000, 0)
    padded = [*parts, *[0.0] * (len(SIZES) - len(parts))]
    got = Planned(state, knobs_of(name, latency_cap=cap), cost_of(name, padded))
    usual = (cap - 1.0) * MARGIN - SPARE
    if waits:
        usual = max(usual, WORTH_IT - 1.0)
    for share in (usual, HARD - 1.0):
        fits = sum(ms <= share * got.base_ms for ms in parts)
        if fits == len(parts) < len(SIZES):
            fits += 1  # one step into what is not known
        if fits:
            assert got.chunk == SIZES[fits - 1]
            return
    assert got.chunk == SIZES[0]


@pytest.mark.parametrize(
    ("parts", "chunk"),
    [
        ([0.0] * len(SIZES), 16),
        ([1e-3], 32),
        ([1e-3] * (len(SIZES) - 1), 512),
        ([1e-3] * len(SIZES), 512),
        ([1e-3, 1e-3, 1e-3, 1e6, 1e6, 1e6], 48),
        ([1e-3, 1e6], 16),
        ([1e6] * len(SIZES), 16),
    ],
)
def test_sizes_by_what_is_known(parts, chunk):
    state = streaming([(1.0, 0.0)])
    put(state, 8, 1, 3000, 0)
    assert Planned(state, knobs_of(), cost_of(parts=parts)).chunk == chunk


# --- who shares with whom --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beside_ms", "decode_ms", "sliced"), [(50, 10, True), (50, 50, True), (10, 50, False)]
)
@pytest.mark.parametrize("cap", [2.0, 3.0])
def test_who_in_the_background_waited_longer_goes_on(beside_ms, decode_ms, sliced, cap):
    state = streaming([(0.0, 0.0)])
    put(state, 3, 1, 100, 99)
    put(state, 8, 1, 5000, 0)
    memory = waited(beside_ms, decode_ms)
    knobs = knobs_of("gpu-moe", latency_cap=cap)
    got = Planned(state, knobs, cost_of("gpu-moe", [0.1] * len(SIZES)), memory=memory)
    assert got.slice_ms == pytest.approx(
        ((cap - 1.0) * MARGIN - SPARE) * got.base_ms if sliced else 0.0
    )
    assert sliced or got.slots == [0, 3]
    assert memory.since_ns[SINCE_BESIDE if sliced else SINCE_DECODE] == NOW


def test_decoders_that_find_no_room_leave_it_to_prompts():
    state = streaming([(0.0, 0.0)])
    put(state, 3, 1, 100, 99)
    put(state, 8, 1, 5000, 0)
    cap = 1.1  # no decoder rides for that
    got = Planned(
        state, knobs_of("gpu-moe", latency_cap=cap), cost_of("gpu-moe", [0.1] * len(SIZES)),
        memory=waited(10, 50),
    )  # fmt: skip
    assert got.slots == [0]
    assert got.slice_ms == pytest.approx(((cap - 1.0) * MARGIN - SPARE) * got.base_ms)
    assert got.memory.since_ns[SINCE_BESIDE] == NOW
    assert got.memory.since_ns[SINCE_DECODE] < NOW  # it is still theirs


def test_an_interactive_prompt_goes_before_decoders_in_the_background():
    state = streaming([(0.0, 0.0)])
    put(state, 3, 1, 100, 99)
    put(state, 8, 0, 900, 0)
    put(state, 7, 1, 5000, 0)
    got = Planned(state, knobs_of(), cost_of(parts=[0.1] * len(SIZES)), memory=waited(0, 100))
    assert got.listed == [8, 7]
    assert got.slice_ms == pytest.approx((WORTH_IT - 1.0) * got.base_ms)


BURST = st.lists(st.integers(2, 60), min_size=1, max_size=N - 3)


@given(
    BURST, st.sampled_from([0.1, 0.5, 2.0, 8.0]), st.booleans(), st.booleans(),
    st.sampled_from([1.0, 12.0]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_short_prompts_together_are_left_to_ticks_where_copying_takes_longer(
    lengths, copy_ms, begun, background, budget_ms
):
    state, cost = streaming([(-1.0, 0.0)]), cost_of(parts=[0.1] * len(SIZES))
    cost.copies[:] = copy_ms
    for s, n in enumerate(lengths, start=1):
        put(state, s, 0, n, 0)
        state.aside[s] = begun
    if background:
        put(state, N - 1, 1, 5000, 0)
    got = Planned(state, knobs_of(tick_budget_ms=budget_ms), cost)
    waiting = set(range(1, 1 + len(lengths)))
    copies_ms, kv = len(lengths) * copy_ms, got.memory.past[KIND_DECODE]
    cheaper = predict(cost, 0, 0, sum(lengths), kv) <= copies_ms
    assert set(got.listed) - {N - 1} == (set() if cheaper else waiting)
    assert (N - 1 in got.listed) == background
    computed = set(got.slots) & waiting
    if not cheaper:
        assert not computed
        return
    most_ms = got.base_ms + min(copies_ms, budget_ms)
    assert got.info.predicted_ms <= max(most_ms, HARD * got.base_ms) * NEARLY
    if predict(cost, 0, 1, sum(lengths), kv) <= most_ms:
        assert computed == waiting
        counts = dict(zip(got.slots, got.plan.counts[: got.entries].tolist(), strict=True))
        assert all(counts[s] == n for s, n in enumerate(lengths, start=1))


@pytest.mark.parametrize(
    ("known", "begun", "in_ticks"),
    [(0, False, False), (100, False, False), (2048, False, True), (2048, True, False)],
)
def test_a_turn_of_which_most_is_known_is_the_ticks(known, begun, in_ticks):
    """The second context has nothing of it yet, and would be given what is known first."""
    state, cost = streaming([(-1.0, 0.0)]), cost_of(parts=[0.1] * len(SIZES))
    cost.copies[:] = 0.4 * predict(cost, 0, 0, 60, known / 2)
    put(state, 1, 0, known + 60, known)
    state.cached[1], state.aside[1] = known, begun
    got = Planned(state, knobs_of(tick_budget_ms=100.0), cost)
    assert (1 in got.slots) == in_ticks
    assert (1 in got.listed) != in_ticks


def test_who_cannot_go_beside_is_no_reason_to_make_a_tick_longer():
    state, cost = streaming([(-1.0, 0.0)]), cost_of(parts=[0.1] * len(SIZES))
    cost.copies[:] = 50.0
    for s in range(1, 6):
        put(state, s, 0, 900, 0)
        state.aside[s] = -1
    got = Planned(state, knobs_of(), cost)
    assert got.info.predicted_ms <= HARD * got.base_ms * NEARLY


class Life:
    """One stream with a real error budget, and background, for some simulated seconds."""

    def __init__(self, name, seconds, *, part_ms=0.1, cap=1.2, decoders=0, holdoff=False):
        self.state = streaming([(1.0, 0.0)])
        for s in range(3, 3 + decoders):
            put(self.state, s, 1, 100, 99)
        put(self.state, 8, 1, 10**6, 0)
        self.memory, self.now = fresh(), NOW
        self.tokens = self.slow = self.slices = self.rides = 0
        self.slice_gap = self.ride_gap = 0
        knobs, cost = knobs_of(name, latency_cap=cap), cost_of(name, [part_ms] * len(SIZES))
        sliced = ridden = NOW
        number = 0
        while self.now < NOW + seconds * 10**9:
            number += 1
            got = Planned(self.state, knobs, cost, number=number, now=self.now, memory=self.memory)
            used = got.slice_ms // part_ms * part_ms if got.slice_ms < ALL_THE_TIME else 0.0
            if used:
                self.slices += 1
                self.slice_gap, sliced = max(self.slice_gap, self.now - sliced), self.now
            self.now += int((used + got.info.predicted_ms) * 1e6)
            if set(got.slots) & set(range(3, 8)):
                self.rides += 1
                self.ride_gap, ridden = max(self.ride_gap, self.now - ridden), self.now
            for s in got.slots:
                if s == 0:
                    gap = (self.now - self.state.t_last_ns[0]) / 1e6
                    self.state.credit[0], slow = settle_credit(
                        self.state.credit[0], earned(knobs), 0.0, cap, got.info.baseline_ms, gap
                    )
                    self.tokens, self.slow = self.tokens + 1, self.slow + slow
                self.state.t_last_ns[s], self.state.served[s] = self.now, number
        self.slice_gap = max(self.slice_gap, self.now - sliced)
        self.ride_gap = max(self.ride_gap, self.now - ridden)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("cap", [1.2, 2.0])
@pytest.mark.parametrize("decoders", [0, 2])
def test_background_shares_and_the_stream_keeps_its_promise(name, cap, decoders):
    life = Life(name, 10, cap=cap, decoders=decoders)
    assert life.slices > 50 and life.slice_gap < 2 * 10**9
    if decoders:
        assert life.rides > 10 and life.ride_gap < 2 * 10**9
    # 3 in 100, and those that a stream may save up
    assert life.slow <= EARNED_PACED * life.tokens + 3


def test_parts_that_fit_no_ordinary_slice_are_paid_for_now_and_then():
    cost = cost_of()
    base = Planned(streaming([(1.0, 0.0)]), knobs_of(), cost).base_ms
    life = Life("gpu-dense", 10, part_ms=0.5 * base)
    assert life.slices >= 3
    assert life.slow >= life.slices
    assert life.slow <= EARNED_PACED * life.tokens + 3


def test_time_since_the_last_slice_runs_only_while_somebody_waits():
    state, memory = streaming([(1.0, 0.0)]), fresh(SOONER_MS)
    cost, knobs = cost_of(parts=[0.1] * len(SIZES)), knobs_of()
    Planned(state, knobs, cost, memory=memory)
    assert memory.since_ns[SINCE_BESIDE] == NOW
    put(state, 8, 1, 5000, 0)
    memory.since_ns[SINCE_PROMPT] = 0
    for share, spends in [(0.5, False), (1.1, True), (1.2, False)]:
        now = NOW + int(share * BACK_WAIT_MS * 1e6)
        # the stream is late by itself: the cap leaves nothing, the budget does
        state.t_last_ns[0] = now - int(0.4 * got_base(state, knobs, cost) * 1e6)
        got = Planned(state, knobs, cost, now=now, memory=memory)
        assert bool(got.flags & FLAG_SPENT) == spends
        assert (got.slice_ms > 0.0) == spends
        assert (memory.since_ns[SINCE_BESIDE] == now) == spends


def got_base(state, knobs, cost):
    return Planned(state, knobs, cost).base_ms
