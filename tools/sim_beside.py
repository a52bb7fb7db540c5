"""Prompts beside the simulated ticks, in the two ways of `Machine`.

On a processor with a core to spare, a worker computes all the time.  With slices, it computes parts
of a chunk before a tick, in time that the policy grants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.engine.ticks.beside import UNLIKE, note_shape
from umaserve.engine.ticks.records import Facts, Flight
from umaserve.jit.compiled import INNER, njit
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

NS = 1_000_000  # per millisecond
PIECE = 128  # prompt tokens that land at once from beside the ticks
STARVED_NS = 1_000_000_000  # a part that waited so long begins all the same

# Outcome.totals
(TICKS, BUSY_MS, ASIDE_TOKENS, ASIDE_MS, SPENT_TICKS, PARKED, ABORTED, STREAM_MS,
 STREAM_PROMPT, STREAM_ROWS, BACK_PROMPT, END_MS, CHANGES) = range(13)  # fmt: skip

@njit(**INNER)
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


@njit(**INNER)
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


@njit(**INNER)
def slice_before(state, plan, worker, machine, now, totals):
    """Compute parts of a chunk before a tick, all as long as the longest; returns the ms.

    The last one that begins ends within the slice, so half of one goes unused in the mean.
    """
    ms, size = plan.info.slice_ms, chunk_class(int(plan.info.chunk_beside))
    part, chunk = machine.part_ms[size], machine.chunk_ms[size]
    if worker[0] < 0.0 or ms <= 0.0 or chunk <= 0.0:
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


@njit(**INNER)
def give_up(worker, s):
    """The request of slot ``s`` has ended."""
    if worker[0] == s:
        worker[0] = -1.0


@njit(**INNER)
def after_change(machine, knobs, cost, memory, plan, shape, rows, prompt, ms, totals):
    """Ms of a tick that would take ``ms`` after others of its shape; ``shape``: `Shape`."""
    flight, facts, counts = shape.flight, shape.facts, shape.counts
    facts.tokens, facts.decoding_rows = rows + prompt, rows
    note_shape(flight, knobs, cost, memory, rows, facts, plan.info)
    counts[1] = counts[1] + 1 if rows == counts[0] else 0
    if counts[1] == 0:
        totals[CHANGES] += 1
    counts[0] = rows
    if counts[1] < UNLIKE:
        ms += machine.changed_ms[counts[1]]
    return ms


class Shape(NamedTuple):
    """Shapes of the last ticks.  ``counts`` int64[2]: decoding rows, ticks since they changed."""

    counts: np.ndarray
    flight: Flight
    facts: Facts

    @classmethod
    def fresh(cls) -> Shape:
        return cls(np.array([-1, UNLIKE], np.int64), Flight.zeros(), Facts.zeros())
