"""The order within a tick in which interactive sessions decode; docs/SCHEDULER.md has the rules.

Each step returns what it decided; `plan_streams` fills the plan.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
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
from umaserve.policy.cost.prediction import predict
from umaserve.policy.fairness import add_decoders
from umaserve.policy.processor.slices import grant_slice
from umaserve.policy.prompts import add_prompts
from umaserve.policy.urgency import charge

from .chunk import Chunk, interactive_chunk, merged_ms
from .ride import background_of, choose_ride
from .slack import Slack, slack_of, streams_of


@njit(**INNER)
def plan_streams(state, tick, knobs, cost, memory, plan, bounds):
    """Fill a tick in which interactive sessions decode; returns the number of entries.

    The streams whose turn it is decode.  Prompts between the ticks take a slice of the slack, and
    interactive prompts take a chunk of the rest.  Background rides within the cap, else on credit.
    """
    found, since = memory.found, memory.since_ns
    streams = streams_of(knobs, memory, bounds)
    slack = slack_of(state, tick, knobs, cost, memory, plan, streams, bounds.graph)
    if knobs.sliced and found[KIND_ASIDE] and bounds.mode == 0 and found[KIND_PROMPT] == 0:
        ms = grant_slice(tick, cost, memory, plan, slack)
        if ms > 0.0:
            slack = Slack(max(slack.cap_ms - ms, 0.0), max(slack.pace_ms - ms, 0.0), 0.0, 0.0)
    plan.info.interactive_rows = streams.rows
    entries = add_decoders(state, memory, plan, 0, KIND_DECODE, streams.rows)

    chunk = Chunk(0, False, slack.cap_ms)
    if found[KIND_PROMPT]:
        chunk = interactive_chunk(state, tick, knobs, cost, memory, bounds, streams, slack)
        if chunk.tokens == 0:
            plan.info.marks |= FLAG_GUARDED | FLAG_SKIPPED_PREFILL
    if chunk.tokens > 0 or found[KIND_PROMPT] == 0:
        since[SINCE_INTERACTIVE] = tick.now_ns
    if chunk.apart:
        entries = 0
        plan.info.interactive_rows = 0
    first = entries
    entries = add_prompts(state, memory, plan, entries, KIND_PROMPT, chunk.tokens)
    if chunk.tokens > 0:
        charge(state, tick, memory, plan, first, entries, _added_ms(cost, streams, chunk))
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
    background = background_of(state, memory, bounds, streams, chunk)
    ride = choose_ride(tick, knobs, cost, memory, streams, slack, background)
    if ride.rows + ride.tokens > 0:
        entries = _add_ride(state, tick, memory, plan, entries, streams, ride)
    if back_prompts and ride.tokens == 0:
        plan.info.marks |= FLAG_GUARDED | FLAG_SKIPPED_PREFILL
    elif ride.rows + ride.tokens == 0:
        plan.info.marks |= FLAG_GUARDED
    return entries


@njit(**INNER)
def _added_ms(cost, streams, chunk):
    """Predicted ms by which a chunk delays the streams."""
    if chunk.apart:
        return predict(cost, streams.mode, 0, chunk.tokens, streams.behind)
    return max(merged_ms(cost, streams, chunk.tokens) - streams.ms, 0.0)


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
    if ride.ms > 0.0:
        plan.info.marks |= FLAG_SPENT
        plan.info.allowed_ms = streams.ms + ride.ms
    return entries
