"""Merging decoders or taking turns: the better of the two, found again when it changes."""

from __future__ import annotations

import numpy as np
import pytest

from tools import sim_run
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import ALL_FEATURES, Knobs, Memory, Plan, Tick
from umaserve.policy.cost.model import MOST_SURE, CostModel, learn
from umaserve.policy.cost.sweet_spot import LOOK_ON
from umaserve.policy.guarded import LOOK_AGAIN, plan_tick
from umaserve.wire.states import RUNNING

N = 3
FRONT, BACK = 0, 1
TRAFFIC = Traffic(*[0.0] * len(Traffic._fields))._replace(dense=5e8, n_ubatch=512.0)
KNOBS = Knobs(2048, 0, 50.0, 1.2, 25.0, False, False, ALL_FEATURES, False)
SECOND_NS = 10**9


def decoders(lane, n=N):
    state = sim_run.World.empty(n, n).state
    state.state[:], state.lane[:] = RUNNING, lane
    state.n_tokens[:], state.n_past[:] = 100, 99
    state.arrival[:] = range(1, n + 1)
    state.t_submit_ns[:], state.t_first_ns[:] = SECOND_NS, 2 * SECOND_NS
    state.t_last_ns[:], state.credit[:] = 10 * SECOND_NS, 1.0
    return state


def run(lane, believed_ms, true_ms, ticks, n_rows=N, captured_ms=()):
    """Rows of each tick, where ticks take ``true_ms`` by rows and are believed to take others.

    ``captured_ms``: on an accelerator, what the first ticks after a change of shape take more.
    """
    knobs = KNOBS._replace(overlaps=bool(captured_ms))
    cost, memory, state = CostModel.unknown(), Memory.fresh(n_rows), decoders(lane, n_rows)
    for rows, ms in believed_ms.items():
        for _ in range(3):
            learn(cost, 0, rows, 0, 0, ms)
        cost.count[0, rows, 0] = MOST_SURE
    plan, now, rows = Plan.empty(n_rows), 11 * SECOND_NS, np.zeros(ticks, int)
    for number in range(1, ticks + 1):
        tick = Tick(number, now, 10_000, 300, np.inf)
        rows[number - 1] = n = plan_tick(state, tick, knobs, cost, memory, TRAFFIC, plan)
        alike = number - 1 - np.flatnonzero(rows[:number] != n).max(initial=-1)
        wall_ms = true_ms[n] + (captured_ms[alike - 1] if alike <= len(captured_ms) else 0.0)
        now += int(1e6 * wall_ms)
        state.t_last_ns[plan.slots[:n]] = now
        state.served[plan.slots[:n]] += 1
        learn(cost, 0, n, 0, 99, wall_ms)
    return rows


@pytest.mark.parametrize("turns_ms", [29.0, 35.0])
def test_streams_seldom_pause_for_a_look_at_what_seems_worse(turns_ms):
    """Taking turns for one tick makes everybody else's token late by it."""
    true_ms = {1: turns_ms, 2: 55.0, 3: 75.0}
    rows = run(FRONT, true_ms, true_ms, 40 * LOOK_AGAIN)
    looks = int((rows < N).sum())
    assert (rows == N).sum() == rows.size - looks
    # the least that still finds out whether something has changed, and a hundredth of the tokens
    assert 10 <= looks <= rows.size / LOOK_AGAIN + 1


@pytest.mark.parametrize("lane", [FRONT, BACK])
@pytest.mark.parametrize(
    ("true_ms", "believed_ms", "right"),
    [
        ({1: 10.0, 2: 55.0, 3: 75.0}, {1: 40.0}, 1),  # turns, which seemed slow
        ({1: 31.0, 2: 35.0, 3: 40.0}, {3: 110.0}, N),  # merging did
    ],
)
def test_what_was_learned_beside_another_program_is_found_out(lane, true_ms, believed_ms, right):
    rows = run(lane, {**true_ms, **believed_ms}, true_ms, 20 * LOOK_AGAIN)
    assert (rows[: 2 * N] != right).all()
    assert (rows[-2 * LOOK_AGAIN :] == right).mean() > 0.9


@pytest.mark.parametrize(
    ("n", "true_ms", "believed_ms"),
    [
        (2, {1: 29.0, 2: 48.0}, {2: 75.0}),
        (2, {1: 29.0, 2: 48.0}, {2: 110.0}),
        (3, {1: 31.0, 2: 55.0, 3: 60.0}, {2: 80.0, 3: 170.0}),
    ],
)
def test_merging_in_the_background_is_found_out_soon(n, true_ms, believed_ms):
    """Noise makes ticks longer, never shorter: one look that was cheaper calls for the next."""
    rows = run(BACK, {**true_ms, **believed_ms}, true_ms, 4 * LOOK_AGAIN, n)
    assert (rows[:LOOK_AGAIN] == 1).mean() > 0.9
    assert (rows[3 * LOOK_AGAIN :] == n).mean() > 0.9


@pytest.mark.parametrize("lane", [FRONT, BACK])
@pytest.mark.parametrize("believed_ms", [{}, {2: 4.9}, {1: 2.0, 2: 5.0}, {2: 7.0}])
def test_merging_is_found_out_where_a_change_of_shape_is_dear(lane, believed_ms):
    """Two streams on an H200 (0.5B) took turns for good: a tick that merged them once took 4.4 ms,
    each one of several on end 1.5, but for the first two."""
    true_ms = {1: 1.2, 2: 1.5}
    rows = run(lane, {**true_ms, **believed_ms}, true_ms, 24 * LOOK_AGAIN, 2, (2.9, 4.7))
    assert (rows[12 * LOOK_AGAIN :] == 2).all()


@pytest.mark.parametrize("lane", [FRONT, BACK])
def test_looks_are_rare_where_they_take_several_ticks(lane):
    true_ms = {1: 1.2, 2: 3.0}
    rows = run(lane, true_ms, true_ms, 64 * LOOK_AGAIN, 2, (2.0, 3.0))
    merged = rows == 2
    assert 0 < merged.mean() < 0.05
    begins = np.flatnonzero(np.diff(merged.astype(int), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(merged.astype(int), append=0) == -1) + 1
    assert (ends - begins >= LOOK_ON).all()
