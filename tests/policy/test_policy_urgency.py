"""Lanes of requests that nobody has labelled."""

from __future__ import annotations

import pytest

from tests.support.policy_states import MACHINES, N, empty, known, plan_of, put, told
from tests.support.simulated import play
from tools.sim_loads import INTERACTIVE, Load
from umaserve.policy.base import (
    ALL_FEATURES,
    AUTO,
    AUTO_PAID,
    AUTO_SUNK,
    FEATURES,
    LABELLED,
    LANE_BACKGROUND,
    LANE_INTERACTIVE,
    Memory,
    SchedulerState,
)
from umaserve.policy.cost.model import predict
from umaserve.policy.urgency import ALLOWANCE, LOOSE, REFILL, SENT_TOGETHER_MS

NAME = "cpu-2core-amx-0.5b"
LONG, SHORT = 2000, 12
STREAM, PROMPT, OTHER = 0, 1, 2


def unlabelled(state: SchedulerState, s: int, program: int) -> None:
    state.auto[s], state.program[s] = AUTO, program


def beside_a_stream(*prompts: int) -> SchedulerState:
    """A stream of program 1, and prompts of program 2 that have just come."""
    state = empty()
    put(state, STREAM, LANE_INTERACTIVE, 50, 49)
    for s, tokens in enumerate(prompts, PROMPT):
        put(state, s, LANE_INTERACTIVE, tokens, 0)
    for s in range(len(prompts) + 1):
        unlabelled(state, s, 1 if s == STREAM else 2)
    return state


def planned(state: SchedulerState, memory: Memory | None = None, **changes) -> Memory:
    memory = memory or Memory.fresh(N)
    plan_of(state, told(NAME, **changes), known(NAME), memory=memory)
    return memory


def affordable(tokens: int) -> int:
    """How many prompts of so many tokens a program may have at once."""
    cost = known(NAME)
    prompt_ms = predict(cost, 0, 0, tokens, 0.5 * tokens)
    return int(ALLOWANCE * predict(cost, 0, 1, 0, 49.0) / prompt_ms)


def test_a_long_prompt_sinks_beside_a_stream_and_rises_with_its_answer() -> None:
    state = beside_a_stream(LONG)
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_BACKGROUND, AUTO_SUNK)
    assert (state.lane[STREAM], state.auto[STREAM]) == (LANE_INTERACTIVE, AUTO)
    state.n_past[PROMPT] = LONG - 1  # the last token of the prompt
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)


def of_one_program(*, apart_ms: float = 0.0) -> SchedulerState:
    """A stream and a long prompt of the same program."""
    state = beside_a_stream(LONG)
    state.program[PROMPT] = state.program[STREAM]
    state.t_submit_ns[PROMPT] = state.t_submit_ns[STREAM] + int(apart_ms * 1e6)
    return state


def test_what_a_program_sends_at_once_does_not_sink() -> None:
    state = of_one_program(apart_ms=SENT_TOGETHER_MS)
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)


def test_what_it_sends_later_sinks() -> None:
    state = of_one_program(apart_ms=SENT_TOGETHER_MS + 1.0)
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_BACKGROUND, AUTO_SUNK)


@pytest.mark.parametrize("decodes", [False, True])
def test_it_sinks_where_somebody_else_is_there(decodes: bool) -> None:
    state = of_one_program()
    put(state, OTHER, LANE_INTERACTIVE, 50, 49 if decodes else 0)
    unlabelled(state, OTHER, 2)
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_BACKGROUND, AUTO_SUNK)


def test_the_rest_of_a_long_prompt_is_no_short_one() -> None:
    state = beside_a_stream(LONG)
    state.n_past[PROMPT] = LONG - SHORT
    planned(state)
    assert state.lane[PROMPT] == LANE_BACKGROUND


def test_a_parked_stream_is_read_on() -> None:
    state = beside_a_stream(LONG)
    state.t_first_ns[PROMPT] = 1
    planned(state)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_a_short_prompt_stays_interactive() -> None:
    state = beside_a_stream(SHORT)
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO_PAID)


@pytest.mark.parametrize("lane", [LANE_INTERACTIVE, LANE_BACKGROUND])
def test_a_label_wins(lane: int) -> None:
    state = beside_a_stream(LONG, SHORT)
    state.lane[PROMPT : OTHER + 1], state.auto[PROMPT : OTHER + 1] = lane, LABELLED
    planned(state)
    assert list(state.lane[PROMPT : OTHER + 1]) == [lane, lane]


def test_nobody_is_alone_in_the_background() -> None:
    for prompts in ((LONG,), (LONG, LONG), (LONG, SHORT)):
        state = beside_a_stream(*prompts)
        state.state[STREAM] = 0
        planned(state)
        assert not state.lane.any()


def test_only_background_beside_it_is_nobody() -> None:
    state = beside_a_stream(LONG)
    state.lane[STREAM], state.auto[STREAM] = LANE_BACKGROUND, LABELLED
    planned(state)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_without_the_part_a_lane_stays() -> None:
    state = beside_a_stream(LONG)
    planned(state, features=ALL_FEATURES - FEATURES["urgency"])
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_INTERACTIVE, AUTO)


def flood(memory: Memory, program: int, *, most: int = 100) -> int:
    """How many short prompts of a program, one after the other, are interactive before one is not;
    at one point in time."""
    for count in range(most):
        state = beside_a_stream(SHORT)
        state.program[PROMPT] = program
        planned(state, memory)
        if state.lane[PROMPT] == LANE_BACKGROUND:
            return count
    return most


def test_a_flood_of_short_prompts_sinks_and_costs_others_nothing() -> None:
    memory = Memory.fresh(N)
    own = flood(memory, 2)
    assert 0 < own <= affordable(SHORT) + 1
    assert flood(memory, 3) == own
    assert flood(memory, 4) <= 1, "two programs have asked for what all may have together"


def test_what_may_be_asked_for_comes_back_with_time() -> None:
    memory = Memory.fresh(N)
    flood(memory, 2)
    rounds, count = 8, 0
    for _ in range(rounds):
        memory.accounts.since_ns[:] -= 9_000_000_000
        count += flood(memory, 2)
    prompt_ms = predict(known(NAME), 0, 0, SHORT, 0.5 * SHORT)
    back = rounds * REFILL * 9000.0 / prompt_ms
    assert 1.0 <= back - 1.0 <= count <= back + 1.0


def test_many_programs_take_turns_at_accounts() -> None:
    memory = Memory.fresh(N)
    for program in range(2 * memory.accounts.size):
        state = beside_a_stream(SHORT)
        state.program[PROMPT] = program + 10
        planned(state, memory)
    assert (memory.accounts.credit_ms >= 0.0).all()


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_costs_that_are_not_known_sink_nobody(name: str) -> None:
    from umaserve.policy.cost.model import CostModel

    state = beside_a_stream(LONG)
    plan_of(state, told(name), CostModel.unknown())
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_short_prompts_cost_nothing_where_only_their_own_program_waits() -> None:
    """Many that come at once, as an agent's or a benchmark's, are all answered at once."""
    tokens = 4 * SHORT
    many = affordable(tokens) + 2
    assert 2 < many < N  # the account would not pay for all of them
    state = beside_a_stream(*[tokens] * many)
    state.program[:] = 2
    memory = planned(state)
    prompts = slice(PROMPT, PROMPT + many)
    assert (state.lane[prompts] == LANE_INTERACTIVE).all()
    assert (state.auto[prompts] == AUTO_PAID).all()
    # they have cost nothing: the account is whole when another program's stream is there
    state.program[STREAM] = 1
    put(state, PROMPT, LANE_INTERACTIVE, tokens, 0)
    unlabelled(state, PROMPT, 2)
    state.state[PROMPT + 1 : PROMPT + many] = 0
    planned(state, memory)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


def test_a_long_prompt_sinks_beside_its_own_programs_stream_too() -> None:
    state = beside_a_stream(LONG)
    state.program[:] = 2
    planned(state)
    assert (state.lane[PROMPT], state.auto[PROMPT]) == (LANE_BACKGROUND, AUTO_SUNK)


def test_what_is_cached_of_a_long_prompt_does_not_count() -> None:
    state = beside_a_stream(LONG)
    state.n_past[PROMPT] = state.cached[PROMPT] = LONG - SHORT
    planned(state)
    assert state.lane[PROMPT] == LANE_INTERACTIVE


# --- answers that nobody reads as they come -------------------------------------------------------


def beside_an_unread_answer(*prompts: int) -> SchedulerState:
    state = beside_a_stream(*prompts)
    state.unread[STREAM] = 1
    return state


def test_prompts_of_a_program_that_is_alone_mind_no_answer_that_nobody_reads() -> None:
    state = beside_an_unread_answer(LONG)
    state.program[STREAM] = state.program[PROMPT]
    planned(state)
    assert state.lane[PROMPT] == LANE_BACKGROUND, "its answer is read, and it pays with the other"
    state.unread[PROMPT] = 1
    planned(state)
    assert state.lane[PROMPT] == LANE_INTERACTIVE
    put(state, OTHER, LANE_INTERACTIVE, LONG, 0)
    unlabelled(state, OTHER, 3)
    planned(state)
    assert state.lane[PROMPT] == LANE_BACKGROUND, "another program came"


def test_such_an_answer_bears_more_only_while_a_prompt_waits_that_will_be_read() -> None:
    state = beside_an_unread_answer(LONG)
    planned(state)
    assert state.cap[STREAM] == LOOSE and state.cap[PROMPT] == 0.0
    planned(state, latency_cap=3.0)
    assert state.cap[STREAM] == 3.0, "what the daemon was told may be more"
    state.unread[PROMPT] = 1
    planned(state)
    assert state.cap[STREAM] == 0.0
    state.unread[PROMPT], state.n_past[PROMPT] = 0, LONG - 1
    planned(state)
    assert state.cap[STREAM] == 0.0, "a stream is no prompt"


def test_a_label_makes_it_one_like_any_other() -> None:
    state = beside_an_unread_answer(LONG)
    planned(state)
    assert state.cap[STREAM] == LOOSE
    state.auto[STREAM] = LABELLED
    planned(state)
    assert state.cap[STREAM] == 0.0


def test_no_background_makes_it_give_way() -> None:
    state = beside_an_unread_answer(LONG)
    state.lane[PROMPT], state.auto[PROMPT] = LANE_BACKGROUND, LABELLED
    planned(state)
    assert state.cap[STREAM] == 0.0


@pytest.mark.parametrize("name", [NAME, "h200-dense"])
def test_a_first_token_comes_sooner_beside_an_answer_that_nobody_reads(name: str) -> None:
    def played(unread: bool) -> tuple[float, float]:
        load = Load()
        load.add(INTERACTIVE, 60, 600, auto=AUTO, program=1, unread=unread)
        load.add(INTERACTIVE, 600, 40, 500.0, auto=AUTO, program=2)
        jobs = play(load, MACHINES[name]).jobs
        return jobs.first[1] - jobs.due[1], jobs.end[0] - jobs.due[0]

    (first, whole), (first_unread, whole_unread) = played(False), played(True)
    assert first_unread < 0.7 * first
    assert whole_unread < 1.25 * whole
