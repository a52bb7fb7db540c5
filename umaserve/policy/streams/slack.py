"""Slack: how much longer than the streams' rows a tick may take."""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import ERROR_BUDGET, GUARD, KIND_BACK_PROMPT, KIND_DECODE, KIND_PROMPT
from umaserve.policy.latency_guard import allowance


class Bounds(NamedTuple):
    """Bounds of a tick's contents, whichever rows it holds."""

    mode: int  # 1: a prompt on cores of its own leaves the tick fewer; else 0
    rows: int  # decoding rows
    tokens: int  # of one decode, as far as there are free KV cells
    background_tokens: int  # of background prompts: the budget of bytes allows no more
    graph: int  # tokens that libllama computes at once: a longer decode gains nothing


class Streams(NamedTuple):
    """The interactive rows of this tick."""

    mode: int
    rows: int
    past: float  # KV cells that each row attends to
    behind: float  # KV cells that each token of a waiting prompt attends to
    ms: float  # of a tick of these rows alone; 0.0 = unknown
    guarded: bool  # the latency guard bounds the tick, not only the tick budget


class Slack(NamedTuple):
    """How much longer than the streams' rows the tick may take, in ms."""

    cap_ms: float  # within the latency cap
    pace_ms: float  # for a prompt that somebody waits for
    short_ms: float  # for all of a short one
    late_ms: float  # for background that spends credit; 0.0 = there is no credit


@njit(**INNER)
def streams_of(knobs, memory, bounds):
    """The group of interactive decoders whose turn it is."""
    n = memory.found[KIND_DECODE]
    rows = min(memory.group[bounds.mode, n], bounds.tokens)
    ms = memory.alone_ms[bounds.mode, rows]
    guarded = ms > 0.0 and knobs.features & GUARD != 0
    behind = memory.past[KIND_PROMPT if memory.found[KIND_PROMPT] else KIND_BACK_PROMPT]
    return Streams(bounds.mode, rows, memory.past[KIND_DECODE], behind, ms, guarded)


@njit(**INNER)
def slack_of(state, tick, knobs, cost, memory, plan, streams, graph):
    """Slack that the latency guard allows; without the guard, the rest of the tick budget."""
    allowed = allowance(state, tick, knobs, cost, memory, plan, streams.mode, graph)
    if not streams.guarded:
        ms = max(knobs.tick_budget_ms - streams.ms, 0.0)
        return Slack(ms, ms, ms, 0.0)
    # a session may have asked for a cap so wide that nobody else would get a turn
    cap_ms = min(allowed.cap_ms, knobs.tick_budget_ms)
    rich = knobs.features & ERROR_BUDGET and allowed.credit >= 1.0
    late_ms = allowed.late_ms if rich else 0.0
    return Slack(cap_ms, max(allowed.pace_ms, cap_ms), allowed.short_ms, late_ms)
