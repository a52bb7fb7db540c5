"""Isolation: a request that may have killed an engine decodes alone until it proved harmless."""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .base import KIND_ISOLATED, KIND_NONE


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
    return run_isolated(state, tick, knobs, memory, plan)


@njit(**INNER)
def run_isolated(state, tick, knobs, memory, plan):
    """Give the tick to the isolated row that ran longest ago; there has to be such a row."""
    alone = -1
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_ISOLATED and (alone < 0 or state.served[s] < state.served[alone]):
            alone = s
    plan.slots[0] = alone
    room = max(min(knobs.n_batch, tick.free_cells), 1)
    plan.counts[0] = min(state.n_tokens[alone] - state.n_past[alone], room)
    return 1
