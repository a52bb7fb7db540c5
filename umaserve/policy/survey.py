"""Survey: who could be part of this tick, and as what."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.wire.states import NOT_FED

from .base import (
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_ISOLATED,
    KIND_NONE,
    KIND_PROMPT,
    LANES,
    RUNNING,
)
from .shares import share


@njit(**INNER)
def survey(state, tick, knobs, memory):
    """Fill ``memory.kind``, ``found`` and ``past``; without lanes all are alike."""
    memory.found[:] = 0
    memory.past[:] = 0.0
    lanes = knobs.features & LANES
    for s in range(state.state.shape[0]):
        kind = KIND_NONE
        if state.state[s] == RUNNING and state.aside[s] != NOT_FED:
            back = lanes and state.lane[s] != 0
            left = state.n_tokens[s] - state.n_past[s]
            if state.isolate[s]:
                kind = KIND_ISOLATED
            elif left == 1:
                kind = KIND_BACK_DECODE if back else KIND_DECODE
            elif state.aside[s] > 0:
                kind = KIND_ASIDE
            elif left > 1:
                kind = KIND_BACK_PROMPT if back else KIND_PROMPT
        memory.kind[s] = kind
        memory.found[kind] += 1
        memory.past[kind] += state.n_past[s]
        memory.turn[s], memory.due_ns[s] = state.served[s], state.t_last_ns[s]
        state.rounds[s] = 1.0
    share(state, tick, knobs, memory)
    for kind in range(memory.found.shape[0]):
        if knobs.wide_reads:
            memory.past[kind] = tick.kv_cells
        elif memory.found[kind]:
            memory.past[kind] /= memory.found[kind]
