"""Prompts beside the simulated ticks, in the three ways of `Machine`.

On a processor with a core to spare, a worker computes all the time.  With slices, it computes parts
of a chunk before a tick, in time that the policy grants.  On an accelerator (``paced``), chunks are
computed in parts too, or go on through ticks and make these longer.  Their KV cells are copied
between two ticks, which makes the next ones longer as well; a prompt with a single token to make
has it where it was computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from umaserve.engine.loop.beside import UNLIKE, note_shape
from umaserve.engine.loop.records import Facts, Flight
from umaserve.policy.accelerator.beside import may_land
from umaserve.policy.base import ALL_THE_TIME
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class, learn_flow_ms
from umaserve.wire.states import RUNNING

NS = 1_000_000  # per millisecond
PIECE = 128  # prompt tokens that land at once from beside the ticks
STARVED_NS = 1_000_000_000  # a part that waited so long begins all the same

# Outcome.totals
(TICKS, BUSY_MS, ASIDE_TOKENS, ASIDE_MS, SPENT_TICKS, PARKED, ABORTED, STREAM_MS,
 STREAM_PROMPT, STREAM_ROWS, BACK_PROMPT, END_MS, CHANGES) = range(13)  # fmt: skip

SLOT, TOKENS, THROUGH, LEFT_MS = range(4)  # Paced.chunk
ROWS, SAME, LANDED_AGO = range(3)  # Paced.shape


class Paced(NamedTuple):
    """What an accelerator computes beside its ticks; all arrays owned by this tuple.

    ``chunk`` float64[4]: slot (-1 = none), tokens, 1 = it goes on through ticks, ms that it still
    takes.  By slot: ``pending`` int32, tokens that are computed and not copied, and ``since``
    int64, from when on, in ns.  ``shape`` int64[3]: decoding rows of the last tick, ticks since
    they changed, ticks since a landing.
    """

    chunk: np.ndarray
    pending: np.ndarray
    since: np.ndarray
    shape: np.ndarray
    flight: Flight
    facts: Facts

    @classmethod
    def idle(cls, n_slots: int) -> Paced:
        return cls(
            np.array([-1.0, 0.0, 0.0, 0.0]), np.zeros(n_slots, np.int32),
            np.zeros(n_slots, np.int64), np.array([-1, 0, UNLIKE], np.int64), Flight.zeros(),
            Facts.zeros(),
        )  # fmt: skip


@njit(nogil=True, cache=True)
def give_orders(state, plan, worker, now):
    """What is computed aside; ``worker`` float64[3]: slot (-1 = none), tokens done of its piece,
    and ns at which a slice last had room for a part of it."""
    n = 0
    while plan.aside[n] >= 0:
        n += 1
    running = int(worker[0])
    listed_running = False
    for s in range(state.aside.shape[0]):
        listed = False
        for i in range(n):
            if plan.aside[i] == s:
                listed = True
        if state.aside[s] == 1 and not listed:
            state.aside[s] = 0
        elif listed and state.aside[s] == 0:
            state.aside[s] = 1
        if s == running and listed:
            listed_running = True
    if n == 0:
        worker[0] = -1.0
    elif (
        running < 0
        or not listed_running
        or (plan.aside[0] != running and state.lane[plan.aside[0]] < state.lane[running])
    ):
        worker[0] = plan.aside[0]
        worker[1], worker[2] = 0.0, now


@njit(nogil=True, cache=True)
def compute(state, plan, worker, ms, per_s, most, totals):
    """Let the prefill worker run for so long, down its list, in pieces of ``most`` tokens."""
    tokens = ms * per_s / 1000.0
    totals[ASIDE_MS] += ms
    while worker[0] >= 0.0 and tokens > 0.0:
        s = int(worker[0])
        piece = min(most, state.n_tokens[s] - state.n_past[s] - 1)
        take = min(tokens, piece - worker[1])
        tokens -= take
        worker[1] += take
        if worker[1] >= piece - 1e-9:
            state.n_past[s] += piece
            totals[ASIDE_TOKENS] += piece
            worker[1] = 0.0
            if state.n_tokens[s] - state.n_past[s] <= 1:
                state.aside[s] = 0
                worker[0] = -1.0
                i = 0
                while plan.aside[i] >= 0:
                    other = plan.aside[i]
                    if state.aside[other] == 1:
                        worker[0] = other
                        break
                    i += 1


@njit(nogil=True, cache=True)
def slice_before(state, plan, worker, machine, now, totals):
    """Compute parts of a chunk before a tick, all as long as the longest; returns the ms.

    The last one that begins ends within the slice, so half of one goes unused in the mean.
    """
    ms, size = plan.info.slice_ms, chunk_class(int(plan.info.chunk_beside))
    part, chunk = machine.part_ms[size], machine.chunk_ms[size]
    if worker[0] < 0.0 or not 0.0 < ms < ALL_THE_TIME or chunk <= 0.0:
        return 0.0
    used = 0.0
    if ms >= part:
        used = max(ms // part * part if part > 0.0 else 0.0, ms - 0.5 * part)
    elif now - worker[2] > STARVED_NS:
        used = part
    if used > 0.0:
        worker[2] = now
        tokens = CHUNK_SIZES[size]
        compute(state, plan, worker, used, 1000.0 * tokens / chunk, tokens, totals)
    return used


@njit(nogil=True, cache=True)
def give_up(worker, paced, s):
    """The request of slot ``s`` has ended."""
    if worker[0] == s:
        worker[0] = -1.0
    if paced.chunk[SLOT] == s:
        paced.chunk[SLOT] = -1.0
    paced.pending[s] = 0


@njit(nogil=True, cache=True)
def land(state, single, paced, now):
    """Copy the cells of one prompt, the first that has some.  ``single`` bool[n_slots]: prompts
    with one token to make, which need no copy while they are computed beside the ticks."""
    slot = -1
    for s in range(state.state.shape[0]):
        waits = paced.pending[s] > 0 and state.state[s] == RUNNING
        if not waits or single[s] and state.aside[s] == 1:
            continue
        if slot < 0 or paced.since[s] < paced.since[slot]:
            slot = s
    if slot < 0 or not may_land(state, state.lane[slot], (now - paced.since[slot]) / NS):
        return
    left = state.n_tokens[slot] - 1 - state.n_past[slot]  # some may have come with the ticks
    state.n_past[slot] += max(min(paced.pending[slot], left), 0)
    paced.pending[slot] = 0
    if state.n_tokens[slot] - state.n_past[slot] <= 1:
        state.aside[slot] = 0
    paced.shape[LANDED_AGO], paced.flight.unlike = 0, UNLIKE


@njit(nogil=True, cache=True)
def next_part_ms(machine, paced):
    """What the next part of a chunk takes that waits between ticks; 0 = none waits."""
    if paced.chunk[SLOT] < 0.0 or paced.chunk[THROUGH] > 0.0:
        return 0.0
    return _mean_part_ms(machine, paced.chunk[TOKENS]) + machine.late_ms


@njit(nogil=True, cache=True)
def _mean_part_ms(machine, tokens):
    return np.interp(tokens, CHUNK_SIZES, machine.chunk_ms) / machine.n_parts


@njit(nogil=True, cache=True)
def slice_paced(plan, machine, paced):
    """Compute parts of a chunk before a tick; returns the ms that this takes."""
    chunk, ms = paced.chunk, plan.info.slice_ms
    if chunk[SLOT] < 0.0 or chunk[THROUGH] > 0.0 or not 0.0 < ms < ALL_THE_TIME:
        return 0.0
    part, spent = _mean_part_ms(machine, chunk[TOKENS]), machine.late_ms
    while chunk[LEFT_MS] > 0.0 and spent + part <= ms:
        spent += part
        chunk[LEFT_MS] -= part
    return spent


@njit(nogil=True, cache=True)
def begin_chunk(state, plan, machine, paced):
    """Begin the first chunk of the plan's list that has tokens to compute, if there is none."""
    grant, chunk = plan.info.chunk_beside, paced.chunk
    if chunk[SLOT] >= 0.0 or grant <= 0:
        return
    i = 0
    while plan.aside[i] >= 0:
        s = plan.aside[i]
        left = state.n_tokens[s] - 1 - state.n_past[s] - paced.pending[s]
        if left > 0:
            tokens = min(grant, left)
            through = plan.info.flows > 0
            takes = machine.flow_ms if through else machine.chunk_ms
            chunk[SLOT], chunk[TOKENS], chunk[THROUGH] = s, tokens, 1.0 if through else 0.0
            chunk[LEFT_MS] = np.interp(tokens, CHUNK_SIZES, takes)
            return
        i += 1


@njit(nogil=True, cache=True)
def end_chunk(paced, machine, cost, now, totals):
    """The slot whose chunk is computed by now; -1 = none is."""
    chunk = paced.chunk
    if chunk[SLOT] < 0.0 or chunk[LEFT_MS] > 0.0:
        return -1
    s, tokens = int(chunk[SLOT]), int(chunk[TOKENS])
    if chunk[THROUGH] > 0.0:
        learn_flow_ms(cost, tokens, np.interp(tokens, CHUNK_SIZES, machine.flow_ms))
    totals[ASIDE_TOKENS] += tokens
    chunk[SLOT] = -1.0
    if paced.pending[s] == 0:
        paced.since[s] = now
    paced.pending[s] += tokens
    return s


@njit(nogil=True, cache=True)
def through_tick(machine, knobs, cost, memory, plan, paced, rows, prompt, ms, totals):
    """What a tick takes that would take ``ms`` after others of its shape, with no chunk beside it.

    What is told of it goes to ``paced.facts``.
    """
    flight, facts, shape, chunk = paced.flight, paced.facts, paced.shape, paced.chunk
    facts.tokens = rows + prompt
    note_shape(flight, knobs, cost, memory, rows, facts, plan.info)
    changed = flight.unlike > 0
    flight.unlike = max(flight.unlike - 1, 0)
    shape[SAME] = shape[SAME] + 1 if rows == shape[ROWS] else 0
    if shape[SAME] == 0:
        totals[CHANGES] += 1
    shape[ROWS] = rows
    since = min(shape[SAME], shape[LANDED_AGO])
    if since < UNLIKE:
        ms += machine.changed_ms[since]
    shape[LANDED_AGO] += 1
    facts.disturbed = facts.changed = 1 if changed else 0
    facts.through = 0
    whole = chunk[THROUGH] > 0.0
    if chunk[SLOT] >= 0.0 and (whole or plan.info.slice_ms >= ALL_THE_TIME):
        facts.disturbed = 1
        size = chunk_class(int(chunk[TOKENS]))
        ms *= machine.times[size]
        if whole and not changed:
            facts.through = 1 + size
        chunk[LEFT_MS] -= ms
    return ms
