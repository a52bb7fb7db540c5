"""Sessions, costs and knobs that tests of the policy start from."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import strategies as st

from tools import sim_run
from tools.sim_machine import presets, probed
from tools.sim_run import TRAFFIC
from umaserve.policy.base import Memory, Plan, SchedulerState, Tick
from umaserve.policy.guarded import plan_tick
from umaserve.wire.states import DONE, FREE, RUNNING, WAITING

N = 10


NOW = 10_000_000_000


MACHINES = {k: m._replace(noise=0.0, outliers=0.0) for k, m in presets().items()}


@functools.cache
def known(name):
    return probed(MACHINES[name])


def empty(n=N):
    return sim_run.World.empty(n, n).state


def put(state, s, lane, n_tokens, n_past, *, credit=1.0, ago_ms=0.0, cap=0.0):
    state.state[s] = RUNNING
    state.lane[s], state.n_tokens[s], state.n_past[s] = lane, n_tokens, n_past
    state.arrival[s] = s + 1
    state.t_submit_ns[s] = NOW - 10**9
    state.credit[s] = credit
    state.cap[s] = cap
    if n_tokens - n_past == 1:
        state.t_submit_ns[s] -= 10**9  # it was not sent with the prompts
        state.t_first_ns[s] = NOW - 10**9
        state.t_last_ns[s] = NOW - int(ago_ms * 1e6)


def told(name="gpu-dense", **changes):
    return MACHINES[name].knobs()._replace(**changes)


def plan_of(state, knobs, cost, *, free=10_000, kv=500, number=0, memory=None):
    plan = Plan.empty(state.state.shape[0])
    tick = Tick(number, NOW, free, kv, np.inf)
    memory = memory or Memory.fresh(state.state.shape[0])
    entries = plan_tick(state, tick, knobs, cost, memory, TRAFFIC, plan)
    return plan, entries


@st.composite
def states(draw):
    state: SchedulerState = empty()
    for s in range(N):
        kind = draw(st.sampled_from([FREE, WAITING, RUNNING, RUNNING, RUNNING, DONE]))
        if kind != RUNNING:
            state.state[s] = kind
            continue
        n_past = draw(st.integers(0, 400))
        left = draw(st.sampled_from([1, 1, 2, 9, 200, 3000]))
        put(
            state, s, draw(st.integers(0, 1)), n_past + left, n_past,
            credit=draw(st.floats(-1, 2.5)), ago_ms=draw(st.floats(0, 100)),
            cap=draw(st.sampled_from([0.0, 1.01, 4.0])),
        )  # fmt: skip
        state.isolate[s] = draw(st.sampled_from([0, 0, 0, 0, 1]))
        state.aside[s] = draw(st.sampled_from([0, 0, 1, -1])) if left > 1 else 0
        state.served[s] = draw(st.integers(0, 50))
    return state
