"""Decoders of the background that ride with streams on an accelerator, tick after tick.

A tick of another shape than the tick before it takes several times as long there, and so does the
next one.  A captured graph is made again.  So decoders do not come and go.  As many ride as fit
into the cap, and they ride with all ticks.  Where prompts are computed beside the ticks, riders
have to fit together with a chunk or a slice.

To begin with riders, or to add some, makes tokens late and takes credit.  They are put off where
streams stay in debt.  Decoders that fit, but not together with prompts, take turns with prompts, of
seconds each.  A decoder that does not ride has ticks of its own on credit.  Such a tick has as many
rows as the streams' if there are as many decoders: another shape would take more credit.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.base import (
    FLOW,
    GUARD,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_PROMPT,
)
from umaserve.policy.cost.model import predict
from umaserve.policy.latency_guard import MARGIN, poorest, strictest_cap

START_CREDIT = 2.0  # of the poorest stream, and more than that is lost before long
IN_DEBT = 64  # ticks with a stream in debt after which they are put off
ROOM = 0.5  # of what the cap leaves that is theirs at most where prompts have the rest
AGAIN = 256  # ticks after the last change before more ride, or any at all
TURN_NS = 2_000_000_000  # of decoders, and of prompts
NOBODY, WAIT = 0, -1  # instead of a number; there will be credit, or it is not their turn


@njit(**INNER)
def apply(knobs, memory):
    """Whether decoders of the background go by this module: not while prompts are in the ticks, or
    streams take turns, which changes shapes anyway.
    """
    found, n = memory.found, memory.found[KIND_DECODE]
    if not (knobs.paced and knobs.features & FLOW and knobs.features & GUARD):
        return False
    if n == 0 or found[KIND_BACK_DECODE] == 0 or found[KIND_PROMPT] + found[KIND_BACK_PROMPT]:
        return False
    return memory.round_ms[0, n] > 0.0 and memory.group[0, n] >= n


@njit(**INNER)
def most_riders(knobs, cost, memory, times, within_ms):
    """How many fit with the streams into a tick of so many ms, where a chunk makes it ``times`` as
    long.
    """
    n = memory.found[KIND_DECODE]
    most = knobs.max_merge if knobs.max_merge > 0 else knobs.n_batch
    for k in range(min(memory.found[KIND_BACK_DECODE], most - n), 0, -1):
        ms = predict(cost, 0, n + k, 0, memory.past[KIND_DECODE])
        if 0.0 < ms * times <= within_ms:
            return k
    return NOBODY


@njit(**INNER)
def let_on(state, tick, memory, k):
    """How many of ``k`` that fit ride with this tick; WAIT = as many, when there is credit."""
    riding, changed = memory.kept.riders, memory.kept.riders_changed
    if k == NOBODY:
        return NOBODY
    credit = poorest(state)
    if riding == 0 or credit >= 0.0:
        memory.kept.riders_paid = tick.number
    elif tick.number - memory.kept.riders_paid > IN_DEBT:
        memory.kept.riders = 0
        memory.kept.riders_changed = tick.number
        return WAIT
    if k > riding and credit >= START_CREDIT and (not changed or tick.number - changed > AGAIN):
        memory.kept.riders_changed = tick.number
        return k
    return min(k, riding) if riding > 0 else WAIT


@njit(**INNER)
def ms_of(cost, memory, k):
    """By how much so many make a tick of the streams longer; -1.0 for WAIT."""
    if k <= 0:
        return float(k)
    n = memory.found[KIND_DECODE]
    together = predict(cost, 0, n + k, 0, memory.past[KIND_DECODE])
    # more than nothing, so that they are looked for
    return max(together - memory.alone_ms[0, n], 0.0) + 1e-6


@njit(**INNER)
def ride_alone(state, tick, knobs, cost, memory, plan):
    """As many as fit into the cap with nothing else; says in ``plan`` how much that takes."""
    room = 1.0 + (strictest_cap(state, knobs, memory) - 1.0) * MARGIN
    base_ms = memory.round_ms[0, memory.found[KIND_DECODE]]
    k = let_on(state, tick, memory, most_riders(knobs, cost, memory, 1.0, room * base_ms))
    plan.info.riders_ms = ms_of(cost, memory, WAIT if k == NOBODY else k)


@njit(**INNER)
def take_turns(state, tick, knobs, cost, memory, plan):
    """Those that do not fit while prompts are computed may fit alone; returns whether it is their
    turn."""
    if tick.now_ns // TURN_NS % 2 == 0:
        ride_alone(state, tick, knobs, cost, memory, plan)
        if plan.info.riders_ms > 0.0:
            return True
    plan.info.riders_ms = WAIT
    return False
