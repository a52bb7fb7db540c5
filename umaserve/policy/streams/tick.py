"""The order within a tick in which interactive sessions decode; docs/SCHEDULER.md has the rules.

Each step returns what it decided; `plan_streams` fills the plan.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.accelerator.beside import prompts_next, slice_between
from umaserve.policy.base import (
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_SPENT,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_PROMPT,
    SINCE_DECODE,
    SINCE_INTERACTIVE,
    SINCE_PROMPT,
)
from umaserve.policy.fairness import add_decoders
from umaserve.policy.flags import mark
from umaserve.policy.prompts import add_prompts

from .chunk import Chunk, interactive_chunk, prompts_of
from .ride import background_of, choose_ride
from .slack import after_slice, slack_of, streams_of, without_credit


@njit(**INNER)
def plan_streams(state, tick, knobs, cost, memory, plan, bounds):
    """Fill a tick in which interactive sessions decode; returns the number of entries.

    The streams whose turn it is decode.  Prompts beside the ticks take a slice of the slack, and
    interactive prompts take a chunk of the rest.  Background rides on credit, else within the cap,
    else by age.
    """
    found, since = memory.found, memory.since_ns
    streams = streams_of(knobs, memory, bounds)
    slack = slack_of(state, tick, knobs, cost, memory, plan, streams)
    between = knobs.paced or (knobs.sliced and bounds.mode == 0 and found[KIND_PROMPT] == 0)
    sliced = between and (
        plan.info.flows > 0 or plan.info.riders_ms != 0.0 or prompts_next(memory, bounds.waits)
    )
    slack = after_slice(tick, knobs, cost, memory, plan, bounds, slack, sliced)
    plan.info.interactive_rows = streams.rows
    entries = add_decoders(state, memory, plan, 0, KIND_DECODE, streams.rows)

    chunk = Chunk(0, False, slack.allowed_ms)
    if found[KIND_PROMPT]:
        prompts = prompts_of(state, tick, knobs, memory, bounds, streams)
        chunk = interactive_chunk(cost, plan, bounds, streams, slack, prompts)
        if chunk.tokens == 0:
            mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    if chunk.tokens > 0 or found[KIND_PROMPT] == 0:
        since[SINCE_INTERACTIVE] = tick.now_ns
    if chunk.apart:
        entries = 0
        plan.info.interactive_rows = 0
    entries = add_prompts(state, memory, plan, entries, KIND_PROMPT, chunk.tokens)
    plan.info.allowed_ms = chunk.ms if chunk.apart else streams.ms + chunk.ms
    if chunk.apart:
        return entries

    back, back_prompts = found[KIND_BACK_DECODE], found[KIND_BACK_PROMPT]
    if back == 0:
        since[SINCE_DECODE] = tick.now_ns
    if back_prompts == 0:
        since[SINCE_PROMPT] = tick.now_ns
    if back + back_prompts == 0 or chunk.tokens > 0 and chunk.ms > slack.cap_ms:
        return entries
    background = background_of(state, memory, plan, bounds, streams, chunk)
    ride = choose_ride(tick, knobs, cost, memory, plan, streams, slack, background)
    if ride.rows + ride.tokens > 0:
        entries = _add_ride(state, tick, memory, plan, entries, streams, ride)
    elif between and found[KIND_ASIDE] and not sliced and chunk.tokens == 0:
        # it was the decoders' turn, and none found room
        slice_between(tick, knobs, cost, memory, plan, bounds.waits, without_credit(slack))
    if back_prompts and ride.tokens == 0:
        mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    elif ride.rows + ride.tokens == 0:
        mark(plan, FLAG_GUARDED)
    return entries


@njit(**INNER)
def _add_ride(state, tick, memory, plan, entries, streams, ride):
    """Add background to the plan; returns the number of entries."""
    since = memory.since_ns
    if ride.apart:
        entries = 0
        plan.info.interactive_rows = 0
    if ride.rows:
        entries = add_decoders(state, memory, plan, entries, KIND_BACK_DECODE, ride.rows)
        since[SINCE_DECODE] = tick.now_ns
    if ride.tokens:
        entries = add_prompts(state, memory, plan, entries, KIND_BACK_PROMPT, ride.tokens)
        since[SINCE_PROMPT] = tick.now_ns
    if ride.on_credit:
        mark(plan, FLAG_SPENT)
        plan.info.allowed_ms = streams.ms + ride.ms
    return entries
