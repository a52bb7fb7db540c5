"""Slack: how much longer than the streams' rows a tick may take, and what the slices leave of it.

A slice is time that prompts beside the ticks get before this tick.
"""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.accelerator.beside import slice_between
from umaserve.policy.base import (
    ERROR_BUDGET,
    GUARD,
    KIND_DECODE,
    SINCE_BESIDE,
    SINCE_DECODE,
)
from umaserve.policy.latency_guard import allowance


class Bounds(NamedTuple):
    """What a tick may hold, whoever is in it."""

    mode: int  # 1: a prompt on cores of its own leaves the tick fewer; else 0
    rows: int  # decoding rows
    tokens: int  # of one decode, as far as there are free KV cells
    background_tokens: int  # of background prompts: the budget of bytes allows no more
    waits: bool  # an interactive prompt is computed beside the ticks
    burst_tokens: int  # of interactive prompts for which the tick may take `burst_ms`
    burst_ms: float
    graph: int  # tokens that libllama computes at once: a longer decode gains nothing


class Streams(NamedTuple):
    """The interactive rows of this tick."""

    mode: int
    rows: int
    past: float  # KV cells that each row attends to
    ms: float  # of a tick of these rows alone; 0.0 = unknown
    guarded: bool  # the latency guard bounds the tick, not only the tick budget


class Slack(NamedTuple):
    """How much longer than the streams' rows the tick may take."""

    cap_ms: float  # within the latency cap
    budget_ms: float  # within the error budget
    credit: float  # of the poorest stream, in slow tokens
    may_spend: bool  # whether credit may be spent at all
    allowed_ms: float  # what `observe` compares the tick with, unless credit is spent


@njit(**INNER)
def streams_of(knobs, memory, bounds):
    """The group of interactive decoders whose turn it is."""
    n = memory.found[KIND_DECODE]
    rows = min(memory.group[bounds.mode, n], bounds.tokens)
    ms = memory.alone_ms[bounds.mode, rows]
    guarded = ms > 0.0 and knobs.features & GUARD != 0
    return Streams(bounds.mode, rows, memory.past[KIND_DECODE], ms, guarded)


@njit(**INNER)
def slack_of(state, tick, knobs, cost, memory, plan, streams):
    """What the latency guard allows, within the tick budget; nothing after a tick that overran."""
    cap_ms, budget_ms, credit = allowance(
        state, tick, knobs, cost, memory, plan, streams.mode
    )  # fmt: skip
    if streams.guarded:
        # a session may have asked for a cap so wide that nobody else would get a turn
        cap_ms = min(cap_ms, knobs.tick_budget_ms)
        budget_ms = min(budget_ms, knobs.tick_budget_ms)
    else:
        cap_ms = budget_ms = max(knobs.tick_budget_ms - streams.ms, 0.0)
        credit = 0.0
    if memory.kept.holdoff > 0:
        memory.kept.holdoff -= 1
        cap_ms = budget_ms = 0.0
    may_spend = (
        streams.guarded and knobs.features & ERROR_BUDGET != 0 and memory.kept.holdoff == 0
    )  # fmt: skip
    return Slack(cap_ms, budget_ms, credit, may_spend, cap_ms)


@njit(**INNER)
def after_slice(tick, knobs, cost, memory, plan, bounds, slack, sliced):
    """The slack that is left by prompts beside the ticks and by decoders that ride with all ticks.

    Prompts get their slice before the tick where it is their turn (``sliced``).
    """
    flows, put_off = plan.info.flows > 0, plan.info.riders_ms < 0.0
    riders_ms = max(plan.info.riders_ms, 0.0)
    slice_ms = 0.0
    if sliced:
        # decoders that are put off have the credit if prompts had their time since
        prompts_last = memory.since_ns[SINCE_DECODE] < memory.since_ns[SINCE_BESIDE]
        theirs = put_off and prompts_last and not (bounds.waits or flows)
        free = Slack(
            max(slack.cap_ms - riders_ms, 0.0), max(slack.budget_ms - riders_ms, 0.0),
            slack.credit, slack.may_spend and not theirs, slack.allowed_ms,
        )  # fmt: skip
        slice_ms = slice_between(tick, knobs, cost, memory, plan, bounds.waits, free)
    cap_ms, budget_ms = max(slack.cap_ms - slice_ms, 0.0), max(slack.budget_ms - slice_ms, 0.0)
    allowed_ms = cap_ms
    if flows:
        allowed_ms += slice_ms  # the chunk has it during the tick
    if flows or riders_ms > 0.0:
        cap_ms = budget_ms = riders_ms  # nothing else may make these ticks longer
        allowed_ms = max(allowed_ms, riders_ms)
    return Slack(cap_ms, budget_ms, slack.credit, slack.may_spend, allowed_ms)


@njit(**INNER)
def without_credit(slack):
    """The same slack, of which no credit may be spent."""
    return Slack(slack.cap_ms, slack.budget_ms, slack.credit, False, slack.allowed_ms)
