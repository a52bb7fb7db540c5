"""Small chunks beside the ticks of an accelerator that go on through them: when, and how large."""

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
    gap_of,
    knobs_of,
    streaming,
    waited,
)
from tests.support.policy_states import put
from umaserve.policy.accelerator.beside import FLOW_KNOWN, FLOW_STARTS_MS
from umaserve.policy.accelerator.riders import ROOM
from umaserve.policy.base import (
    ALL_FEATURES,
    BACK_WAIT_MS,
    FLAG_SPENT,
    FLOW,
    GUARD,
)
from umaserve.policy.cost.model import (
    CHUNK_SIZES,
    FLOW_AGAIN,
    FLOW_WIDTH,
    WILD,
    CostModel,
    learn_flow,
    learn_flow_ms,
)
from umaserve.policy.latency_guard import HARD, MARGIN, RESERVED, noise

SIZES = CHUNK_SIZES.tolist()
SMALL = [1.01] * len(SIZES)  # what chunks of each size do to ticks
LATER = 20_000  # a tick long after those that are remembered


def flowing(times, seen=100.0, at=LATER, ms=1.0, parts=1000.0):
    """Costs by which chunks make ticks so many times longer; they are faster than slices."""
    cost = cost_of(parts=[0.01] * len(SIZES))
    cost.parts[:] = parts
    for i, value in enumerate(times):
        cost.flow[i] = value, seen, ms, at
    return cost


def planned(streams, cost, *, features=ALL_FEATURES, number=LATER, change=None, cap=1.2):
    state = streaming(streams)
    put(state, 8, 1, 3000, 0)
    if change:
        change(state)
    knobs = knobs_of(features=features, latency_cap=cap)
    return Planned(state, knobs, cost, number=number)


def limit_of(got, cost, streams, cap=1.2):
    # a session's own cap counts where it is the stricter
    strict = [(credit, min(own or cap, cap)) for credit, own in streams]
    return gap_of(strict, cap) * noise(got.memory, cost, 0, len(streams))


@given(
    st.lists(st.floats(1.0, 1.6), min_size=len(SIZES), max_size=len(SIZES)).map(sorted),
    st.lists(st.tuples(CREDITS, CAPS), min_size=1, max_size=3),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_largest_chunk_that_keeps_to_the_cap_goes_on_through_the_ticks(times, streams):
    cost = flowing(times)
    got = planned(streams, cost)
    limit = limit_of(got, cost, streams)
    fits = sum(value <= limit for value in times)
    if not fits:
        assert not got.info.flows and got.chunk
        return
    late = min(credit for credit, _ in streams) < 0.0
    assert got.info.flows and got.listed == [8]
    assert got.chunk == SIZES[fits - 1 - (late and fits > 1)]
    # nothing else makes those ticks longer
    assert sorted(got.slots) == list(range(len(streams)))
    assert got.base_ms < got.info.allowed_ms <= gap_of(streams, 1.2) * got.base_ms * NEARLY


def interactive_prompt(state):
    put(state, 9, 0, 3000, 0)


def decoder(state):
    put(state, 9, 1, 100, 99)


def prompt_of_the_ticks(state):
    put(state, 9, 1, 3000, 0)
    state.aside[9] = -1


@pytest.mark.parametrize("change", [interactive_prompt, prompt_of_the_ticks])
def test_beside_anything_else_prompts_get_slices(change):
    cost = flowing(SMALL)
    assert planned([(1.0, 0.0)], cost).info.flows
    assert not planned([(1.0, 0.0)], cost, change=change).info.flows


def beside_a_decoder(times, waited_ms=0.0, flows=SMALL, cap=1.2, credit=2.0, **how):
    """A plan where a decoder of the background makes a round so many times longer."""
    cost = flowing(flows, **how)
    cost.mean[0, 2, 0], cost.count[0, 2, 0] = times * cost.mean[0, 1, 0], 32.0
    cost.kv[0, 2, 0], cost.slope[2] = cost.kv[0, 1, 0], 0.0
    state = streaming([(credit, 0.0)])
    put(state, 8, 1, 3000, 0)
    decoder(state)
    return Planned(state, knobs_of(features=ALL_FEATURES, latency_cap=cap), cost, number=LATER,
                   memory=waited(0.0, waited_ms))  # fmt: skip


@given(
    st.floats(1.0, 3.0), st.lists(st.floats(1.0, 2.5), min_size=len(SIZES), max_size=len(SIZES)),
    st.floats(1.1, 4.0),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_decoder_rides_with_ticks_that_a_chunk_goes_on_through_where_both_fit(times, flows, cap):
    flows = sorted(flows)
    got = beside_a_decoder(times, flows=flows, cap=cap)
    limit = limit_of(got, flowing(flows), [(1.0, 0.0)], cap)
    fits = 1.0 + ROOM * (gap_of([(2.0, 0.0)], cap) - 1.0)  # the other half is the chunk's
    if times * flows[0] > limit / NEARLY or times > fits / NEARLY:
        assert not got.info.flows or 9 not in got.slots or times * flows[0] < limit * NEARLY
        return
    assert got.info.flows and got.slots == [0, 9]
    size = SIZES.index(got.chunk)
    assert times * flows[size] <= limit * NEARLY
    assert size == len(SIZES) - 1 or times * flows[size + 1] > limit / NEARLY
    assert got.info.allowed_ms >= times * got.base_ms / NEARLY


def test_a_slice_of_such_a_tick_leaves_time_for_the_decoder():
    alone, got = beside_a_decoder(3.0).slice_ms, beside_a_decoder(1.05)
    assert got.info.flows and got.slots == [0, 9]
    assert got.slice_ms == pytest.approx(alone - 0.05 * got.base_ms, rel=0.01)


@pytest.mark.parametrize("waited_ms", [0.0, BACK_WAIT_MS - 1.0])
def test_a_decoder_that_finds_no_room_keeps_no_prompts_back(waited_ms):
    """On an H200 two of them, and a stream, left no prompt tokens of 12,500 a second."""
    assert beside_a_decoder(1.05, waited_ms).slots == [0, 9]
    got = beside_a_decoder(2.5, waited_ms)
    assert got.info.flows and got.slots == [0]


def beside_a_part(next_ms, credit, decodes=False):
    """A plan of ticks that a chunk could go on through, while a part of another waits for time.

    ``decodes``: a decoder of the background finds no room.
    """
    memory, cost = waited(0.0, 1.0), flowing(SMALL)
    memory.kept.next_part_ms = next_ms
    state = streaming([(credit, 0.0)])
    put(state, 8, 1, 3000, 0)
    if decodes:
        cost.mean[0, 2, 0], cost.count[0, 2, 0] = 2.5 * cost.mean[0, 1, 0], 32.0
        decoder(state)
    got = Planned(state, knobs_of(features=ALL_FEATURES), cost,
                  number=LATER, memory=memory)  # fmt: skip
    assert got.info.flows
    return got


def test_a_chunk_in_flight_that_stops_for_ticks_is_not_left_there():
    """On an H200 one waited for seconds for a slice as long as a part, and with it all prompts."""
    usual, base = beside_a_part(0.0, 2.5).slice_ms, beside_a_part(0.0, 2.5).base_ms
    assert beside_a_part(0.5 * usual, 2.5).slice_ms == usual
    # a little more than a slice is what the cap leaves all the same, the rest is on credit
    cap_ms = (gap_of([(2.5, 0.0)], 1.2) - 1.0) * base
    within = usual + 0.5 * (cap_ms - usual)
    assert within < beside_a_part(within, 0.0).slice_ms <= cap_ms * NEARLY
    longer = 1.5 * cap_ms
    assert beside_a_part(longer, 1.0 + RESERVED - 0.1).slice_ms < longer
    for decodes in (False, True):
        got = beside_a_part(longer, 1.0 + RESERVED, decodes)
        assert longer < got.slice_ms <= (HARD - 1.0) * base * NEARLY
        assert int(got.flags) & FLAG_SPENT


def test_a_decoder_that_finds_no_room_has_its_least():
    """In a tick of its own, which has the shape of the stream's."""
    got = beside_a_decoder(2.5, BACK_WAIT_MS + 1.0)
    assert got.info.flows and got.slots == [9]


def test_it_can_be_switched_off_and_goes_with_the_guard():
    cost = flowing(SMALL)
    for off in (FLOW, GUARD):
        got = planned([(1.0, 0.0)], cost, features=ALL_FEATURES - off)
        assert not got.info.flows and got.chunk == SIZES[-1]


def test_slices_stay_where_they_compute_more():
    streams = [(1.0, 0.0)]
    assert planned(streams, flowing([1.01, 1.02], ms=10.0, parts=1000.0)).info.flows
    # 512 tokens in a ms, for a seventh of the time, are more than 32 in 10 ms
    quick = flowing([1.01, 1.02, 1.9], ms=10.0, parts=1.0)
    assert not planned(streams, quick).info.flows
    # unless no part fits a slice
    quick.longest[:] = 40.0
    assert planned(streams, quick).info.flows


def test_where_caps_are_wide_streams_need_not_wait_for_nearly_as_many_tokens():
    """Slices of many times a tick leave the streams as slow; chunks beside them do not."""
    streams, share = [(1.0, 0.0)], 20.0
    base = planned(streams, flowing([1.0])).base_ms
    slices = share * MARGIN / (1.0 + share * MARGIN)  # of the time
    token_ms = 0.01 * base
    for part_of, flows in ((1.1, True), (0.9, True), (0.6, False)):
        cost = flowing([1.5] * len(SIZES), parts=token_ms * np.array(SIZES))
        cost.flow.ms = np.array(SIZES) * token_ms / (part_of * slices) - FLOW_STARTS_MS
        assert bool(planned(streams, cost, cap=1.0 + share).info.flows) == flows


@pytest.mark.parametrize("credit", [-1.0, 0.9, 1.0])
def test_what_is_not_known_is_tried_where_it_should_fit_or_on_credit(credit):
    streams = [(credit, 0.0)]

    def tried(*times, **how):
        cost = flowing(times, **how)
        got = planned(streams, cost)
        return got.chunk if got.info.flows else 0

    assert tried() == SIZES[0]  # nothing is known: the smallest will tell
    # 1.02, 1.04: the next is expected to fit; 1.05, 1.15: it is not
    assert tried(1.02, 1.04) == SIZES[2]
    usual = SIZES[1] if credit >= 0.0 else SIZES[0]
    assert tried(1.05, 1.15) == (SIZES[2] if credit >= 1.0 else usual)
    # few ticks of it are no knowledge, though a hint
    few = flowing([1.02, 1.04])
    few.flow[2] = 1.5, FLOW_KNOWN - 1.0, 0.0, LATER
    got = planned(streams, few)
    assert got.chunk == (SIZES[2] if credit >= 1.0 else usual)


def test_a_step_of_more_tokens_is_expected_to_cost_as_much_more():
    def tried(*times):
        got = planned([(0.9, 0.0)], flowing(times))
        return got.chunk

    assert SIZES[2:6] == [48, 64, 96, 128]
    assert tried(1.02, 1.04, 1.06, 1.08) == 96
    # 16 tokens more cost 0.05, so 32 more cost 0.1, which is too much, and one 0.05 would not be
    assert tried(1.01, 1.02, 1.05, 1.1) == 64
    assert tried(1.01, 1.02, 1.05, 1.1, 1.15) == 96
    assert tried(1.01, 1.02, 1.05, 1.06, 1.1) == 128


def test_what_did_not_fit_is_tried_again_much_later_and_then_learned_anew():
    streams, cost = [(2.0, 0.0)], flowing([1.02, 1.5])
    assert planned(streams, cost, number=LATER + FLOW_AGAIN).chunk == SIZES[0]
    later = LATER + FLOW_AGAIN + 1
    assert planned(streams, cost, number=later).chunk == SIZES[1]
    learn_flow(cost, 1, 1.03, later)
    times, *others = cost.flow[1].tolist()
    assert times == pytest.approx(1.03, abs=FLOW_WIDTH) and others == [1.0, 1.0, later]


@given(st.integers(0, 2**32 - 1), st.floats(1.01, 1.5), st.floats(0.02, 0.1))
@settings(max_examples=30, deadline=None)
def test_the_95th_percentile_is_followed(seed, middle, width):
    cost, rng = CostModel.unknown(), np.random.default_rng(seed)
    seen = np.maximum(rng.normal(middle, width, 4000), 1.0)
    followed = []
    for tick, times in enumerate(seen):
        learn_flow(cost, 2, times, tick)
        followed.append(cost.flow[2].times)
    late = np.mean(seen[1001:] > np.array(followed[1000:-1]))
    assert 0.02 <= late <= 0.08
    assert not np.delete(cost.numbers()["flow"], 2, 0).any()
    assert cost.flow[2].seen == 4000


def test_a_slow_first_chunk_condemns_no_size():
    """As it was when the first tick beside a size took far longer than those after it."""
    cost = CostModel.unknown()
    learn_flow(cost, 1, 2.0, 1)
    assert cost.flow[1].times > 1.9
    for tick in range(2, 2 + int(FLOW_KNOWN)):
        learn_flow(cost, 1, 1.08, tick)
    assert cost.flow[1].times < 1.1


def test_a_stall_hardly_moves_it_and_no_tick_is_shorter_than_alone():
    cost = CostModel.unknown()
    learn_flow(cost, 0, 0.5, 1)
    assert 1.0 <= cost.flow[0].times <= 1.0 + FLOW_WIDTH
    for tick in range(2, 200):
        learn_flow(cost, 0, 1.1, tick)
    before = cost.flow[0].times
    assert before == pytest.approx(1.1, abs=FLOW_WIDTH)
    learn_flow(cost, 0, 1000.0, 200)
    assert before <= cost.flow[0].times <= before + FLOW_WIDTH
    fresh = CostModel.unknown()
    learn_flow(fresh, 0, 1000.0, 1)
    assert fresh.flow[0].times == pytest.approx(WILD, abs=FLOW_WIDTH)


def test_how_long_a_chunk_takes_is_a_running_mean():
    cost = CostModel.unknown()
    learn_flow_ms(cost, 40, 6.0)
    assert cost.flow[2].ms == 6.0
    for _ in range(40):
        learn_flow_ms(cost, 48, 7.0)
    assert cost.flow[2].ms == pytest.approx(7.0, rel=0.01)
    assert not np.delete(cost.numbers()["flow"], 2, 0).any()


def test_nothing_of_it_is_believed_after_a_restart():
    cost = flowing([1.02, 1.04])
    learn_flow(cost, 1, 1.5, LATER)
    cost.doubt()
    assert not cost.numbers()["flow"].any() and not cost.flow_counts.any()
