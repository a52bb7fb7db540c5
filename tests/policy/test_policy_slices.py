"""Slices of time between a processor's ticks, as the policy plans them: pure, no process."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.policy_states import empty, known, plan_of, put, told
from umaserve.policy.base import (
    ALL_FEATURES,
    FEATURES,
    FLAG_SPENT,
    Memory,
)
from umaserve.policy.cost.model import (
    CHUNK_SIZES,
    FADES,
    CostModel,
    doubt_larger,
    learn,
    learn_part,
)
from umaserve.policy.latency_guard import SPARE
from umaserve.policy.processor.slices import SLICED_CHUNK, learn_longest

CPU = "cpu-2core-0.5b"
CAP = 1.2
SIZES = CHUNK_SIZES[CHUNK_SIZES <= SLICED_CHUNK].tolist()


def costs(part_ms: float = 0.02, all_ms: float = 3.0, token_ms: float | None = None) -> CostModel:
    """Of the two-core machine; a chunk's longest part and all of them, for each of its tokens.

    ``token_ms``: what a token takes that is merged with a row.
    """
    cost = CostModel.unknown()
    cost.copy_from(known(CPU))
    for tokens in SIZES:
        learn_part(cost, tokens, part_ms * tokens, all_ms * tokens)
    if token_ms is not None:
        for tokens in (1, 2, 3, 4, 6, 8, 16, 32):
            for _ in range(60):
                learn(cost, 0, 1, tokens, 99, 17.0 + token_ms * tokens)
    return cost


def planned(
    cost: CostModel, *, credit=0.0, features=ALL_FEATURES, aside=0, late_ms=0.0, next_ms=0.0,
    next_tokens=0, **others,
):  # fmt: skip
    """Somebody interactive decodes, and a long background prompt waits."""
    state = empty()
    put(state, 0, 0, 100, 99, credit=credit)
    put(state, 5, 1, 2000, 0)
    state.aside[5] = aside
    state.t_last_ns[0] -= int(1e6 * late_ms)
    for slot, kind in others.items():
        put(state, int(slot[1:]), *kind)
    features -= FEATURES["prompt-aside"] if features & FEATURES["prompt-aside"] else 0
    memory = Memory.fresh(state.state.size)
    memory.kept.next_part_ms, memory.kept.next_part_tokens = next_ms, next_tokens
    plan, entries = plan_of(state, told(CPU, sliced=True, features=features), cost, memory=memory)
    assert entries >= 1
    return plan


def sliced(plan) -> bool:
    return plan.aside[0] >= 0


def test_a_background_prompt_gets_what_the_cap_leaves_of_each_round():
    plan = planned(costs())
    assert plan.aside.tolist()[:2] == [5, -1]
    assert plan.info.mode == 0
    assert plan.info.chunk_beside in SIZES
    room_ms = (CAP - 1.0 - SPARE) * plan.info.predicted_ms
    assert plan.info.slice_ms == pytest.approx(room_ms, rel=0.02)
    assert plan.counts[0] == 1  # nothing is merged besides


def test_a_part_that_is_too_long_for_an_ordinary_slice_gets_all_that_the_cap_leaves():
    usual, base = planned(costs()).info.slice_ms, planned(costs()).info.predicted_ms
    for share in (0.99 * (CAP - 1.0), CAP - 1.0 - 0.5 * SPARE):
        assert planned(costs(), next_ms=share * base).info.slice_ms == pytest.approx(
            (CAP - 1.0) * base, rel=0.02
        )
    assert planned(costs(), next_ms=0.9 * usual).info.slice_ms == usual
    assert planned(costs(), next_ms=1.1 * (CAP - 1.0) * base).info.slice_ms == usual
    assert planned(costs(), next_ms=0.5 * base, credit=0.9).info.slice_ms == usual


def test_a_round_that_is_late_already_has_no_slice():
    base = planned(costs()).info.predicted_ms
    assert planned(costs(), late_ms=0.3 * base).info.slice_ms == 0.0


def test_credit_buys_a_slice_as_long_as_a_chunk_of_prompts():
    plan = planned(costs(), credit=1.0)
    assert int(plan.info.marks) & FLAG_SPENT
    assert plan.info.slice_ms > 2.0 * plan.info.baseline_ms
    assert plan.info.slice_ms <= 100.0  # of this machine


def test_where_merged_tokens_are_nearly_free_they_ride():
    """One row is bound by memory, and the arithmetic of some more costs next to nothing."""
    assert not sliced(planned(costs(token_ms=0.05)))
    assert sliced(planned(costs(token_ms=4.0)))


@pytest.mark.parametrize("times, rides", [(1.10, True), (1.17, False)])
def test_a_token_on_the_edge_of_the_cap_does_not_count_as_riding(times, rides):
    """Ticks vary, so it would find room in every other one only."""
    base = planned(costs()).info.predicted_ms
    assert sliced(planned(costs(token_ms=times * base - 17.0))) == (not rides)


def test_after_a_restart_slices_that_paid_less_are_tried_once_more():
    slow = next(ms for ms in RATES if not sliced(planned(costs(0.001, ms, 0.5))))
    cost = costs(0.001, slow, 0.5)
    cost.doubt()
    assert sliced(planned(cost))


RATES = np.geomspace(0.2, 20.0, 40)  # ms that a chunk takes for each of its tokens


@pytest.mark.parametrize("aside", [0, 1])
def test_what_is_about_equal_stays_as_it_is(aside):
    """Going back and forth would lose a chunk each time."""
    plans = [sliced(planned(costs(0.001, ms, 0.5), aside=aside)) for ms in RATES]
    changes = [a for a, b in zip(plans, plans[1:], strict=False) if a != b]
    assert changes == [True]  # has slices where chunks are fast, with one edge
    other = [sliced(planned(costs(0.001, ms, 0.5), aside=1 - aside)) for ms in RATES]
    assert (sum(plans) > sum(other)) == bool(aside)


def test_interactive_prompts_come_first_and_stay_in_the_ticks():
    plan = planned(costs(), s3=(0, 50, 0))
    assert 3 not in plan.aside.tolist()
    assert plan.info.slice_ms == 0.0


@pytest.mark.parametrize("part", ["latency-guard", "lanes", "slices"])
def test_without_what_it_rests_on_nothing_is_sliced(part):
    assert not sliced(planned(costs(), features=ALL_FEATURES - FEATURES[part]))


def test_nobody_interactive_no_slices():
    state = empty()
    put(state, 5, 1, 2000, 0)
    plan, entries = plan_of(state, told(CPU, sliced=True), costs())
    assert entries == 1
    assert not sliced(plan)
    assert plan.info.slice_ms == 0.0


def test_the_size_that_computes_most_is_taken_of_those_that_fit():
    cost = costs()
    room_ms = planned(cost).info.slice_ms
    sizes = CHUNK_SIZES.tolist()

    def fits(*which):
        for tokens in SIZES:  # a larger one may have shorter parts: attention has other kernels
            cost.longest[sizes.index(tokens)] = (0.5 if tokens in which else 3.0) * room_ms
        return planned(cost).info.chunk_beside

    assert fits(16, 48) == 16  # all the same for a token: the first
    cost.parts[sizes.index(48)] *= 0.5
    assert fits(16, 48) == 48
    # with the slow kernel that part grows with the context, whatever was measured
    assert fits(16, 48, 64) == 64
    cost.parts[sizes.index(96)] *= 0.9
    assert fits(16, 48, 64, 96) == 96


def test_a_size_whose_parts_fill_a_slice_is_taken():
    """Two of half its length compute more in it than one of two thirds, of a size as quick."""
    cost = costs()
    room_ms = planned(cost).info.slice_ms
    for tokens in SIZES:
        share = {96: 0.48, 128: 0.65}.get(tokens, 3.0)
        cost.longest[CHUNK_SIZES.tolist().index(tokens)] = share * room_ms
    assert planned(cost).info.chunk_beside == 96
    # a third quicker for each token makes up for it
    cost.parts[SIZES.index(128)] *= 0.6
    assert planned(cost).info.chunk_beside == 128


def test_a_size_that_is_not_known_is_tried_after_one_that_fits():
    cost = costs()
    known_sizes = SIZES.index(48)
    cost.longest[known_sizes:] = cost.parts[known_sizes:] = 0.0
    assert planned(cost).info.chunk_beside == 48
    cost.longest[:known_sizes] = 1e3
    assert planned(cost).info.chunk_beside == SIZES[0]


def test_what_was_too_long_is_believed_less_and_less():
    cost = costs()
    before = cost.longest.copy()
    doubt_larger(cost, 32)
    smaller = CHUNK_SIZES <= 32
    assert np.array_equal(cost.longest[smaller], before[smaller])
    assert np.allclose(cost.longest[~smaller], FADES * before[~smaller])


@pytest.mark.parametrize("tokens, as_long", [(64, [64, 96, 128]), (16, [16, 32, 48])])
def test_a_part_that_no_slice_has_room_for_counts_before_its_chunk_ends(tokens, as_long):
    """For larger chunks too, unless these have another kernel."""
    cost = costs()
    before = cost.longest.copy()
    learn_longest(cost, tokens, 0.5 * before[SIZES.index(tokens)], False)
    assert np.array_equal(cost.longest, before)
    learn_longest(cost, tokens, 700.0, False)
    for i, size in enumerate(CHUNK_SIZES.tolist()):
        assert cost.longest[i] == (700.0 if size in as_long else before[i])


def test_while_a_chunk_waits_smaller_ones_become_worth_a_try():
    """However long their parts were, with more cells before them: no chunk would end to tell."""
    cost = costs()
    base = planned(cost).info.predicted_ms
    cost.longest[:] = 0.8 * base
    ticks = 0

    def plan():
        return planned(cost, next_ms=0.5 * base, next_tokens=64, aside=1)

    while not plan().info.redoes:
        learn_longest(cost, 64, 0.5 * base, True)
        ticks += 1
        assert ticks < 500  # some seconds
    assert ticks > 50
    assert plan().info.chunk_beside == SIZES[0]
    assert cost.longest[SIZES.index(64)] == 0.8 * base


@pytest.mark.parametrize("smaller", [16, 48])
def test_a_chunk_with_such_a_part_is_given_up_for_one_whose_parts_fit(smaller):
    """With more KV cells before it than the last one had, or of a size that was not seen yet."""
    cost = costs()
    base = planned(cost).info.predicted_ms
    for tokens in SIZES:
        cost.longest[SIZES.index(tokens)] = 0.05 * base if tokens == smaller else 0.5 * base

    def redoes(next_share: float, tokens: int) -> bool:
        plan = planned(cost, next_ms=next_share * base, next_tokens=tokens, aside=1)
        assert plan.info.chunk_beside == smaller
        return bool(plan.info.redoes)

    assert redoes(0.5, 64) and redoes(0.25, 128)
    assert not redoes(0.9 * (CAP - 1.0), 64)  # the cap has room for this one
    assert not redoes(0.5, smaller)
    assert not redoes(0.5, 0)  # nothing would be gained: it is the chunk's last part


def test_a_chunk_goes_on_where_no_size_has_parts_that_fit():
    cost = costs()
    base = planned(cost).info.predicted_ms
    cost.longest[:] = 0.5 * base
    plan = planned(cost, next_ms=0.5 * base, next_tokens=128, aside=1)
    assert not plan.info.redoes
