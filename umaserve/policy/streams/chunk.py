"""The chunk that interactive prompts get in a tick of streams."""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.base import AGEING, FLAG_SPENT, KIND_PROMPT, SINCE_INTERACTIVE
from umaserve.policy.burst import SHORT_PROMPT
from umaserve.policy.cost.model import largest_chunk, predict
from umaserve.policy.fairness import waited_ms
from umaserve.policy.flags import mark
from umaserve.policy.prompts import MIN_CHUNK, waiting_tokens

PROMPT_WAIT_MS = 250.0  # after which an interactive prompt gets MIN_CHUNK tokens
AS_SOON = 1.03  # times a merged tick, for two ticks in turn: costs are known to a few per cent


class Prompts(NamedTuple):
    """What interactive prompts ask of this tick."""

    tokens: int
    hurry: bool  # they need not save up for the error budget
    aged: bool  # they waited too long


class Chunk(NamedTuple):
    """Prompt tokens of one tick."""

    tokens: int
    apart: bool  # the chunk has the tick for itself: that costs less
    ms: float  # by which it may make the tick longer


@njit(**INNER)
def prompts_of(state, tick, knobs, memory, bounds, streams):
    """The interactive prompts that wait for this tick, as far as there is room."""
    tokens = min(waiting_tokens(state, memory, KIND_PROMPT), bounds.tokens - streams.rows)
    hurry = streams.guarded and (tokens <= SHORT_PROMPT or _late(state, tick, memory))
    aged = False
    if knobs.features & AGEING:
        aged = waited_ms(tick, memory.since_ns, SINCE_INTERACTIVE) > PROMPT_WAIT_MS
    return Prompts(tokens, hurry, aged)


@njit(**INNER)
def _late(state, tick, memory):
    """Whether an interactive prompt is about to miss the first-token time that it asked for."""
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_PROMPT and state.target_ttft_ms[s] > 0.0:
            waited = (tick.now_ns - state.t_submit_ns[s]) / 1e6
            if waited > 0.5 * state.target_ttft_ms[s]:
                return True
    return False


@njit(**INNER)
def interactive_chunk(cost, plan, bounds, streams, slack, prompts):
    """The chunk that interactive prompts get: within the cap, on credit, as a burst, or by age."""
    want = prompts.tokens
    fits = chunk_within(cost, streams, slack.cap_ms, want)
    best = Chunk(fits.tokens, fits.apart, slack.allowed_ms)
    if best.tokens < want and (slack.may_spend and slack.credit >= 1.0 or prompts.hurry):
        more = chunk_within(cost, streams, slack.budget_ms, want)
        if more.tokens > best.tokens:
            best = more
            mark(plan, FLAG_SPENT)
    burst = min(want, bounds.burst_tokens)
    if best.tokens < burst and bounds.burst_ms > best.ms:
        more = chunk_within(cost, streams, bounds.burst_ms, burst)
        if more.tokens > best.tokens:
            best = more
            mark(plan, FLAG_SPENT)
    if best.tokens == 0 and want > 0 and prompts.aged:
        tokens = min(MIN_CHUNK, want)
        ms = predict(cost, streams.mode, streams.rows, tokens, streams.past) - streams.ms
        best = Chunk(tokens, False, ms)
    return best


@njit(**INNER)
def chunk_within(cost, streams, ms, most):
    """The largest chunk that takes ``ms`` more: merged with the rows, or in a tick of its own.

    A short one in a tick of its own too, where that delays the rows no longer: its first token is
    sooner.
    """
    if most <= 0 or ms <= 0.0:
        return Chunk(0, False, ms)
    merged = largest_chunk(cost, streams.mode, streams.rows, streams.past, streams.ms + ms, most)
    alone = largest_chunk(cost, streams.mode, 0, streams.past, ms, most)
    apart = alone > merged
    if 0 < alone == merged <= SHORT_PROMPT:
        in_turns = predict(cost, streams.mode, 0, alone, streams.past) + streams.ms
        together = predict(cost, streams.mode, streams.rows, alone, streams.past)
        apart = in_turns <= AS_SOON * together
    return Chunk(max(merged, alone), apart, ms)
