"""Programs that ask for all get as much each, whatever the number of their requests."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import MACHINES, NOW, N, empty, known, plan_of, put, told
from tests.support.simulated import play
from tools.sim_loads import BACKGROUND, INTERACTIVE, Load, two_apps
from tools.sim_run import Result
from umaserve.policy.base import (
    ALL_FEATURES,
    FEATURES,
    LANE_BACKGROUND,
    LANE_INTERACTIVE,
    Memory,
    SchedulerState,
)
from umaserve.policy.cost.model import CostModel

SLOW = "cpu-2core-0.5b"  # rows cost as much as ticks of their own: streams take turns
FAST = "gpu-dense"  # a row more costs next to nothing
ENOUGH = 0.8  # of what a stream gets beside a single other one


def streams(counts: list[int], weights: list[float], lane: int = LANE_INTERACTIVE):
    """So many decoders of each program."""
    state = empty(sum(counts))
    for program, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        for _ in range(count):
            s = int((state.state != 0).sum())
            put(state, s, lane, 50, 49, ago_ms=1.0)
            state.program[s], state.weight[s] = program, weight
    return state


def sure(name: str) -> CostModel:
    """Costs of which nothing is left to be tried."""
    cost = copy.deepcopy(known(name))
    cost.count[cost.count > 0] = 1000.0
    return cost


def rounds(
    state: SchedulerState, name: str, ticks: int, cap: float = 1.0, credit: float = 0.0
) -> np.ndarray:
    """Tokens of each row after so many ticks of a machine, in which nobody's context grows.

    With a cap of 1 nothing rides.  ``credit``: slow tokens that each stream may have, at all times.
    """
    n, cost = state.state.size, sure(name)
    made, memory, knobs = np.zeros(n, int), Memory.fresh(n), told(name, latency_cap=cap)
    for number in range(1, ticks + 1):
        state.credit[:] = credit
        plan, entries = plan_of(state, knobs, cost, number=number, memory=memory)
        for s in plan.slots[:entries]:
            state.t_last_ns[s] = NOW
        _serve(state, plan.slots[:entries], number, made)
    return made


def _serve(state: SchedulerState, slots: np.ndarray, number: int, made: np.ndarray) -> None:
    for entry, s in enumerate(slots):
        made[s] += 1
        state.served[s] = number * state.state.size + entry


def by_program(state: SchedulerState, made: np.ndarray) -> list[int]:
    return [int(made[state.program == p].sum()) for p in range(int(state.program.max()) + 1)]


def test_a_stream_beside_eight_is_in_every_tick_and_these_take_turns() -> None:
    state = streams([1, 8], [1.0, 1.0])
    made = rounds(state, FAST, 80)
    assert made[0] == 80
    assert made[1:].min() >= 10 - 1
    assert state.rounds[0] == 1.0 and (state.rounds[1:] == 8.0).all()


def test_where_rows_take_turns_a_stream_has_every_other_one() -> None:
    made = rounds(streams([1, 8], [1.0, 1.0]), SLOW, 160)
    assert abs(int(made[0]) - 80) <= 4
    assert made[1:].max() - made[1:].min() <= 2


def test_turns_are_by_weight() -> None:
    state = streams([8, 8], [2.0, 1.0])
    first, second = by_program(state, rounds(state, FAST, 64))
    assert first == pytest.approx(2 * second, rel=0.1)


def test_what_rides_costs_no_more_than_the_cap() -> None:
    """What the streams of one program do not use, those of the other have."""
    few = streams([1, 8], [1.0, 1.0])
    made = rounds(few, FAST, 80, cap=1.5)
    assert made[0] == 80 and made[1:].sum() > 80


@pytest.mark.parametrize("name", [FAST, "h200-dense"])
def test_the_credit_of_streams_buys_no_ticks_for_another_program(name: str) -> None:
    """A stream beyond its program's share does not ride late, however rich the others are."""
    rich, poor = (rounds(streams([1, 8], [1.0, 1.0]), name, 80, credit=c) for c in (2.0, 0.0))
    assert rich.tolist() == poor.tolist()


@pytest.mark.parametrize("counts", [[8], [3, 3], [1, 1, 1, 1]])
def test_equal_programs_are_planned_as_one(counts: list[int]) -> None:
    state = streams(counts, [1.0] * len(counts))
    one = streams([sum(counts)], [1.0])
    assert rounds(state, SLOW, 40).tolist() == rounds(one, SLOW, 40).tolist()
    assert (state.rounds == 1.0).all()


def test_without_the_part_all_are_alike() -> None:
    state = streams([1, 8], [1.0, 1.0])
    plan_of(state, told(FAST, features=ALL_FEATURES - FEATURES["shares"]), known(FAST))
    assert (state.rounds == 1.0).all()


def test_decoders_of_the_background_take_turns_by_program() -> None:
    """Where not all are merged."""
    state = streams([1, 8], [1.0, 1.0], LANE_BACKGROUND)
    knobs, memory, n = told(FAST, max_merge=2), Memory.fresh(9), 9
    made, cost = np.zeros(n, int), sure(FAST)
    for number in range(1, 81):
        plan, entries = plan_of(state, knobs, cost, number=number, memory=memory)
        _serve(state, plan.slots[:entries], number, made)
    assert made[0] == 80 and made[1:].max() - made[1:].min() <= 1


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0])),
        min_size=2, max_size=4,
    ),
    st.sampled_from([SLOW, FAST, "cpu-2core-amx-0.5b"]),
)  # fmt: skip
@settings(max_examples=60)
def test_no_program_has_less_than_its_share_and_none_of_its_streams_starves(
    programs: list[tuple[int, float]], name: str
) -> None:
    counts, weights = [c for c, _ in programs], [w for _, w in programs]
    state = streams(counts, weights)
    made = rounds(state, name, 120)
    turns = min(c / w for c, w in programs)
    own = [min(c, max(int(turns * w + 1e-9), 1)) for c, w in programs]
    passed = [m / o for m, o in zip(by_program(state, made), own, strict=True)]
    whole = min(p for p, o, c in zip(passed, own, counts, strict=True) if o == c)
    assert min(passed) >= 0.9 * whole - 2.0, "rounds that each has had"
    for program in range(len(programs)):
        mine = made[state.program == program]
        assert mine.max() - mine.min() <= 3
        assert mine.min() > 0


def mean_ms(result: Result, job: int = 0) -> float:
    out, tokens = result.outcome, result.tokens
    gaps = out.token_gap[:tokens][out.token_job[:tokens] == job]
    return float(gaps[gaps >= 0.0][30:].mean())


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_streams_and_a_flood_of_another_program_cost_no_more_than_its_share(name: str) -> None:
    size = {"seconds": 12.0, "n_ctx": 1 << 18, "n_slots": 16}
    beside_one = mean_ms(play(two_apps(1, 0, tokens=20_000), MACHINES[name], **size))
    result = play(two_apps(8, 0, tokens=20_000), MACHINES[name], **size)
    assert beside_one / mean_ms(result) >= ENOUGH
    for others in (8, 1):
        result = play(two_apps(others, 4, tokens=20_000), MACHINES[name], **size)
        assert not result.outcome.faults.any()
        # the program that streams and sends prompts has two shares of three while it does both
        assert mean_ms(result) <= 1.05 * max(25.0, 1.5 * beside_one), others


@pytest.mark.parametrize("name", [SLOW, FAST])
def test_who_comes_later_finds_a_sequence(name: str) -> None:
    """Where another program has all of them, and more requests than there are."""
    load = Load()
    for _ in range(9):
        load.add(INTERACTIVE, 20, 3000, program=1)
    late = load.add(INTERACTIVE, 20, 40, 2000.0, program=2)
    result = play(load, MACHINES[name], n_seq=4, seconds=20.0)
    waited_ms = (result.jobs.first[late] - result.jobs.due[late]) / 1e6
    assert 0.0 < waited_ms < 1500.0
    assert result.jobs.end[late] > 0


def test_sequences_are_shared_by_weight() -> None:
    load = Load()
    for program, weight in ((1, 1.0), (2, 3.0)):
        for _ in range(12):
            load.add(INTERACTIVE, 20, 3000, 10.0 * program, program=program, weight=weight)
    result = play(load, MACHINES[FAST], n_seq=8, seconds=3.0)
    made = np.bincount(result.outcome.token_job[: result.tokens], minlength=load.size)
    assert made[12:].sum() / made[:12].sum() == pytest.approx(3.0, rel=0.25)


@pytest.mark.parametrize("lane", [INTERACTIVE, BACKGROUND])
@pytest.mark.parametrize("name", [SLOW, FAST, "h200-dense"])
def test_prompts_of_programs_are_computed_by_turns(name: str, lane: int) -> None:
    """Of one lane, though all of one program's came before the other's."""
    load = Load()
    for _ in range(20):
        load.add(lane, 800, 1, program=1)
    for _ in range(5):
        load.add(lane, 800, 1, 1.0, program=2)
    if lane == BACKGROUND:
        load.add(INTERACTIVE, 20, 20_000, program=3)
    result = play(load, MACHINES[name], n_slots=N * 4, n_ctx=1 << 18, seconds=900.0)
    ends = result.jobs.end[:25]
    assert (ends > 0).all()
    assert (ends[:20] < ends[24]).sum() <= 8
