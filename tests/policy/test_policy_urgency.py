"""Lanes of requests that nobody has labelled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.policy_states import MACHINES, NOW, N, empty, known, plan_of, put, told
from umaserve.policy.base import (
    ALL_FEATURES,
    AUTO,
    AUTO_SUNK,
    FEATURES,
    LABELLED,
    LANE_BACKGROUND,
    LANE_INTERACTIVE,
    Memory,
    SchedulerState,
)
from umaserve.policy.cost.model import CostModel
from umaserve.policy.shares import ALL
from umaserve.policy.urgency import OWN, TOGETHER, gives_way

NAME = "h200-moe"
LONG = 4000
STREAM, PROMPT, OTHER = 0, 1, 2


def beside_a_stream(*programs: int, tokens: int = LONG) -> SchedulerState:
    """A stream of program 1, and prompts of these programs that have just come."""
    state = empty()
    put(state, STREAM, LANE_INTERACTIVE, 50, 49)
    state.auto[STREAM], state.program[STREAM] = AUTO, 1
    for s, program in enumerate(programs, PROMPT):
        put(state, s, LANE_INTERACTIVE, tokens, 0)
        state.auto[s], state.program[s] = AUTO, program
    return state


def planned(state: SchedulerState, memory: Memory, **changes) -> float:
    """Plan a tick; returns the ms by which its prompts delay the stream."""
    plan, entries = plan_of(state, told(NAME, **changes), known(NAME), memory=memory)
    slots = plan.slots[:entries].tolist()
    alone = float(memory.alone_ms[0, 1])
    return plan.info.predicted_ms - (alone if STREAM in slots else 0.0)


def spend(memory: Memory, program: int, most: int = 200) -> float:
    """Plan chunks of a program's prompt at one point in time until it is background; their ms."""
    spent = 0.0
    for _ in range(most):
        state = beside_a_stream(program)
        memory.late_ms[:] = 0.0
        ms = planned(state, memory)
        if state.lane[PROMPT] == LANE_BACKGROUND:
            assert state.auto[PROMPT] == AUTO_SUNK
            return spent
        spent += ms
    return spent


def test_a_program_may_slow_others_for_a_second_at_once() -> None:
    memory = Memory.fresh(N)
    assert OWN.most_ms <= spend(memory, 2) <= OWN.most_ms + 60.0
    assert spend(memory, 2) == 0.0
    assert spend(memory, 3) >= OWN.most_ms - 60.0
    assert spend(memory, 4) <= 60.0, "all programs together have twice as much"


def test_an_allowance_comes_back_with_time() -> None:
    memory = Memory.fresh(N)
    spend(memory, 2)
    memory.accounts.since_ns[:] -= 2_000_000_000
    back = spend(memory, 2)
    assert back == pytest.approx(2000.0 * OWN.rate, abs=120.0)
    memory.accounts.since_ns[:] -= 10**15
    assert spend(memory, 2) <= OWN.most_ms + 60.0, "no more than that is kept"
    assert memory.accounts[ALL].credit_ms <= TOGETHER.most_ms


def test_a_background_prompt_becomes_interactive_with_its_answer() -> None:
    memory = Memory.fresh(N)
    spend(memory, 2)
    state = beside_a_stream(2)
    state.n_past[PROMPT] = LONG - 1  # the last token of the prompt
    planned(state, memory)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)
    state = beside_a_stream(2)
    state.t_first_ns[PROMPT] = 1  # a parked stream is still read
    planned(state, memory)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_prompts_beside_streams_of_their_own_program_are_not_charged() -> None:
    memory = Memory.fresh(N)
    for _ in range(100):
        memory.late_ms[:] = 0.0
        state = beside_a_stream(1)
        assert planned(state, memory) > 0.0
        assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)
    assert (memory.accounts.credit_ms == 0.0).all()


def test_prompts_that_delay_no_stream_are_not_charged() -> None:
    memory = Memory.fresh(N)
    spend(memory, 2)
    state = beside_a_stream(2, 3)
    state.state[STREAM] = 0
    planned(state, memory)
    assert not state.lane.any()
    state = beside_a_stream(2)
    state.lane[STREAM], state.auto[STREAM] = LANE_BACKGROUND, LABELLED
    planned(state, memory)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_two_prompts_of_a_tick_are_charged_by_their_tokens() -> None:
    memory, state = Memory.fresh(N), beside_a_stream(2, 3, tokens=100)
    ms = planned(state, memory)
    mine = {int(a.program): OWN.most_ms - a.credit_ms for a in memory.accounts if a.program > 1}
    assert sum(mine.values()) == pytest.approx(ms)
    assert mine[2] == pytest.approx(mine[3])


@pytest.mark.parametrize("lane", [LANE_INTERACTIVE, LANE_BACKGROUND])
def test_a_label_wins(lane: int) -> None:
    memory = Memory.fresh(N)
    spend(memory, 2)
    state = beside_a_stream(2)
    state.lane[PROMPT], state.auto[PROMPT] = lane, LABELLED
    before = memory.accounts.credit_ms.copy()
    planned(state, memory)
    assert state.lane[PROMPT] == lane
    assert np.array_equal(before, memory.accounts.credit_ms)


def test_without_the_part_a_lane_stays() -> None:
    memory = Memory.fresh(N)
    spend(memory, 2)
    state = beside_a_stream(2)
    planned(state, memory, features=ALL_FEATURES - FEATURES["urgency"])
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)


def test_a_waiting_prompt_without_allowance_takes_nobodys_place() -> None:
    memory = Memory.fresh(N)
    state, knobs = beside_a_stream(2), told(NAME)
    assert not gives_way(state, knobs, memory, PROMPT, NOW)
    spend(memory, 2)
    assert gives_way(state, knobs, memory, PROMPT, NOW)
    state.auto[PROMPT] = LABELLED
    assert not gives_way(state, knobs, memory, PROMPT, NOW)


def test_more_programs_than_accounts_take_turns_at_them() -> None:
    memory = Memory.fresh(N)
    for program in range(2 * memory.accounts.size):
        memory.accounts[ALL].credit_ms = 1000.0
        planned(beside_a_stream(program + 10), memory)
    assert (memory.accounts.credit_ms > 0.0).all()


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_nobody_is_background_where_no_cost_is_known(name: str) -> None:
    state = beside_a_stream(2)
    plan_of(state, told(name), CostModel.unknown())
    assert state.lane[PROMPT] == LANE_INTERACTIVE
