"""Isolation: rows that are alone in their ticks, since they may do harm, or want equal shapes."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.wire.states import APART

from .base import KIND_DECODE, KIND_ISOLATED, KIND_NONE

SELDOM = 26  # ticks to a background row's: streams may have 4 slow tokens in 100


@njit(**INNER)
def isolate(state, tick, knobs, memory, plan):
    """Take every other tick for one isolated row while others run, else every tick.

    Returns the number of entries: 1, or 0 when this tick belongs to the others.
    """
    if memory.found[KIND_ISOLATED] == 0:
        return 0
    others = memory.kind.shape[0] - memory.found[KIND_NONE] - memory.found[KIND_ISOLATED]
    if others > 0 and tick.number % 2 == 1:
        return 0
    alone = _longest_ago(state, memory)
    is_background = state.isolate[alone] == APART and state.lane[alone] != 0
    if is_background and memory.found[KIND_DECODE] > 0 and tick.number % SELDOM != 0:
        return 0
    return run_isolated(state, tick, knobs, memory, plan)


@njit(**INNER)
def run_isolated(state, tick, knobs, memory, plan):
    """Give the tick to the isolated row that ran longest ago; there has to be such a row."""
    alone = _longest_ago(state, memory)
    plan.slots[0] = alone
    room = max(min(knobs.n_batch, tick.free_cells), 1)
    plan.counts[0] = min(state.n_tokens[alone] - state.n_past[alone], room)
    return 1


@njit(**INNER)
def _longest_ago(state, memory):
    """Return the isolated row that ran longest ago."""
    alone = -1
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_ISOLATED and (alone < 0 or state.served[s] < state.served[alone]):
            alone = s
    return alone
