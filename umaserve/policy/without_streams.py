"""Ticks in which nobody interactive decodes: an interactive prompt goes first, else throughput."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .base import (
    ABORT,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_PROMPT,
    SINCE_ANYBODY,
    SINCE_DECODE,
    SINCE_INTERACTIVE,
    SINCE_PROMPT,
)
from .cost.prediction import efficient_chunk, largest_chunk, predict
from .fairness import add_decoders, is_late, waited_ms
from .prompts import MIN_CHUNK, add_prompts, tokens_together, waiting_tokens

BLIND_CHUNK = 64  # prompt tokens of a tick whose cost nobody knows
# Tick budgets that a tick of prompts may take if it can be given up at any moment.
# Interactive prompts: as many as the second, and the first where background waits for its share.
# Once one was given up, no more than have passed since, or than the first.  So at most half of the
# work is given up.
LONG_TICKS, LONE_TICKS = 8, 200
# Background prompts, and where nobody interactive has come for as long.
LONGER_TICKS, LONGEST_TICKS = 20, 40
LONG_UNSTOPPED = 4.0
EFFICIENT = 0.85  # of the best rate, for a chunk that nobody can stop
WORTH_TURNS = 1.05  # what turns have to save of a tick for both: costs are known to a few per cent


@njit(**INNER)
def plan_prompts(state, tick, knobs, cost, memory, plan, bounds):
    """Nobody interactive decodes, and an interactive prompt waits: it goes first."""
    found, since, kv = memory.found, memory.since_ns, memory.past[KIND_PROMPT]
    since[SINCE_INTERACTIVE] = tick.now_ns
    # background that waited too long rides at any cost, and the chunk leaves room for it
    back, back_prompts = min(found[KIND_BACK_DECODE], bounds.rows), found[KIND_BACK_PROMPT]
    late_rows = back > 0 and is_late(tick, knobs, since, SINCE_DECODE)
    late_prompts = back_prompts > 0 and is_late(tick, knobs, since, SINCE_PROMPT)
    kept = (back if late_rows else 0) + (MIN_CHUNK if late_prompts else 0)
    most = min(max(bounds.tokens - kept, 1), bounds.graph)
    want = tokens_together(state, cost, memory, most)
    limit = _prompt_budget(tick, knobs, memory, back + back_prompts)
    chunk = _blind_or_largest(cost, 0, kv, limit, want)
    if not can_be_given_up(knobs):
        # of chunks up to four tick budgets, the smallest that is nearly as efficient as any
        chunk = max(
            chunk, efficient_chunk(cost, kv, LONG_UNSTOPPED * knobs.tick_budget_ms, want, EFFICIENT)
        )
    entries = add_prompts(state, memory, plan, 0, KIND_PROMPT, chunk)
    room = bounds.tokens - chunk
    limit = knobs.latency_cap * predict(cost, 0, 0, chunk, kv)
    back = min(back, room)
    if back > 0 and (late_rows or 0.0 < predict(cost, 0, back, chunk, kv) <= limit):
        entries = add_decoders(state, memory, plan, entries, KIND_BACK_DECODE, back)
        room -= back
        since[SINCE_DECODE] = tick.now_ns
    left = more = 0
    if back_prompts:
        left = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), bounds.background_tokens, room)
    if left > 0 and found[KIND_BACK_DECODE] == 0:
        more = largest_chunk(cost, 0, 0, kv, kv, limit, chunk + left) - chunk
    if left > 0 and more <= 0 and late_prompts:
        more = min(MIN_CHUNK, left)
    if more > 0:
        entries = add_prompts(state, memory, plan, entries, KIND_BACK_PROMPT, more)
        since[SINCE_PROMPT] = tick.now_ns
    if found[KIND_BACK_DECODE] == 0:
        since[SINCE_DECODE] = tick.now_ns
    if back_prompts == 0:
        since[SINCE_PROMPT] = tick.now_ns
    return entries


@njit(**INNER)
def can_be_given_up(knobs):
    """Whether a tick of prompts alone can end when an interactive request comes."""
    return knobs.abortable and knobs.features & ABORT != 0


@njit(nogil=True, cache=True)
def note_done(memory, info):
    """A tick that could have been given up was computed to its end."""
    if info.abort_ms > 0.0:
        memory.kept.given_up = 0


@njit(nogil=True, cache=True)
def note_given_up(memory, now_ns):
    """The chunk that was planned last has been given up for somebody who came."""
    if memory.found[KIND_PROMPT]:
        memory.kept.given_up += 1
        memory.kept.given_up_ns = now_ns


@njit(**INNER)
def _prompt_budget(tick, knobs, memory, background):
    """ms that a tick of interactive prompts may take; ``background``: requests that wait for it."""
    ticks = float(LONG_TICKS if background else LONE_TICKS)
    if memory.kept.given_up_ns:
        calm = (tick.now_ns - memory.kept.given_up_ns) / 1e6 / knobs.tick_budget_ms
        ticks = min(max(calm, float(LONG_TICKS)), ticks)
    return _long_budget(knobs, ticks)


@njit(**INNER)
def _long_budget(knobs, ticks):
    """ms that a tick of prompts may take: ``ticks`` tick budgets if it can be given up."""
    return ticks * knobs.tick_budget_ms if can_be_given_up(knobs) else knobs.tick_budget_ms


@njit(**INNER)
def _blind_or_largest(cost, rows, kv, limit, most):
    """The largest chunk within the limit; a small one where nobody knows what it takes."""
    if predict(cost, 0, rows, most, kv) <= 0.0:
        return min(BLIND_CHUNK, most)
    chunk = largest_chunk(cost, 0, rows, kv, kv, limit, most)
    # a floor, so that a cost once learned too high is found out
    return max(chunk, min(MIN_CHUNK, most))


@njit(**INNER)
def plan_background(state, tick, knobs, cost, memory, plan, bounds):
    """Nobody interactive has work: throughput, under the tick budget."""
    found, since, kv = memory.found, memory.since_ns, memory.past[KIND_BACK_PROMPT]
    since[SINCE_INTERACTIVE] = tick.now_ns
    rows = min(memory.group[bounds.mode, found[KIND_BACK_DECODE]], bounds.tokens)
    tokens = 0
    if found[KIND_BACK_PROMPT]:
        waiting = waiting_tokens(state, memory, KIND_BACK_PROMPT)
        tokens = min(waiting, bounds.tokens - rows, bounds.background_tokens)
    if tokens <= 0:
        since[SINCE_DECODE] = since[SINCE_PROMPT] = tick.now_ns
    elif rows == 0:
        since[SINCE_DECODE] = since[SINCE_PROMPT] = tick.now_ns
        tokens = _long_chunk(tick, knobs, cost, since, kv, bounds.graph, tokens)
    else:
        rows, tokens = _together_or_in_turns(
            knobs, cost, memory, bounds.mode, rows, kv, tokens
        )  # fmt: skip
        if rows:
            since[SINCE_DECODE] = tick.now_ns
        if tokens:
            since[SINCE_PROMPT] = tick.now_ns
    entries = add_decoders(state, memory, plan, 0, KIND_BACK_DECODE, rows)
    return add_prompts(state, memory, plan, entries, KIND_BACK_PROMPT, tokens)


@njit(**INNER)
def _long_chunk(tick, knobs, cost, since, kv, graph, most):
    """The chunk of a tick of background prompts alone: as long as can be stopped, or as pays."""
    if can_be_given_up(knobs):
        most = min(most, graph)
    calm = waited_ms(tick, since, SINCE_ANYBODY) / knobs.tick_budget_ms
    ticks = min(max(calm, LONGER_TICKS), LONGEST_TICKS)
    chunk = _blind_or_largest(cost, 0, kv, _long_budget(knobs, ticks), most)
    if not can_be_given_up(knobs):
        enough = efficient_chunk(cost, kv, knobs.tick_budget_ms, most, EFFICIENT)
        if enough:
            chunk = min(chunk, enough)
    return chunk


@njit(**INNER)
def _together_or_in_turns(knobs, cost, memory, mode, rows, kv, most):
    """Background rows and prompt tokens of a tick: both, or those who waited longer."""
    rows_ms = memory.alone_ms[mode, rows]
    budget = max(knobs.tick_budget_ms, 2.0 * rows_ms)
    chunk = _blind_or_largest(cost, rows, kv, budget, most)
    apart = _blind_or_largest(cost, 0, kv, budget, most)
    together = predict(cost, mode, rows, chunk, kv)
    separate = rows_ms + predict(cost, mode, 0, apart, kv)
    if together <= 0.0 or together * apart <= separate * chunk * WORTH_TURNS:
        return rows, chunk
    if memory.since_ns[SINCE_DECODE] <= memory.since_ns[SINCE_PROMPT]:
        return rows, 0
    return 0, apart
