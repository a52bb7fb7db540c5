"""Greedy batching, as llama.cpp's own server does it: a baseline, and a policy in plain Python.

Everybody's next token and as much of every prompt as fits go into the same tick.  Any function with
this signature plugs in through ``--policy MODULE:FUNCTION``.  It is called once a tick, and what it
costs more than the compiled policy is in docs/POLICY.md.
"""

from __future__ import annotations

import numpy as np

from umaserve.wire.states import NOT_FED

from .base import RUNNING, Knobs, Memory, Plan, SchedulerState, Tick
from .cost.model import CostModel


def plan_tick(
    state: SchedulerState,
    tick: Tick,
    knobs: Knobs,
    cost: CostModel,
    memory: Memory,
    traffic: object,
    plan: Plan,
) -> int:
    """Fill ``plan``; returns the number of entries (0 = nothing to do)."""
    running = np.flatnonzero((state.state == RUNNING) & (state.aside != NOT_FED)).tolist()
    isolated = [s for s in running if state.isolate[s]]
    if isolated and (len(isolated) == len(running) or tick.number % 2 == 0):
        running = [min(isolated, key=lambda s: state.served[s])]
    else:
        running = [s for s in running if not state.isolate[s]]
    left = {s: int(state.n_tokens[s] - state.n_past[s]) for s in running}
    room = max(min(knobs.n_batch, tick.free_cells), 1)
    entries = 0
    # decoders first, then prompts, each in order of arrival or of who was served longest ago
    order = sorted(running, key=lambda s: (left[s] > 1, state.served[s], state.arrival[s]))
    for s in order:
        take = min(left[s], room)
        if take <= 0 or (left[s] == 1 and 0 < knobs.max_merge <= entries):
            continue
        plan.slots[entries], plan.counts[entries] = s, take
        entries += 1
        room -= take
    return entries
