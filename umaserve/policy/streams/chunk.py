"""The chunk that interactive prompts get in a tick of streams."""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import AGEING, KIND_PROMPT, SINCE_INTERACTIVE
from umaserve.policy.cost.prediction import largest_chunk, predict, predict_both
from umaserve.policy.fairness import waited_ms
from umaserve.policy.prompts import MIN_CHUNK, prompt_after, waiting_tokens

# An interactive prompt that got nothing for so long gets a chunk: in ms, and in times the ms of a
# tick with one, since streams need time until they are as fast as promised again.
PROMPT_WAIT_MS, PROMPT_WAIT = 250.0, 4.0
NEARLY = 1.05  # times the ms that streams leave, for the smallest worthwhile chunk
AS_SOON = 1.03  # times a merged tick, for two ticks in turn: costs are known to a few per cent
# Tokens of a prompt that is computed whole, though streams are a little late.  As many may have a
# tick of their own though merging is as fast.
SHORT_PROMPT = 64


class Chunk(NamedTuple):
    """Prompt tokens of one tick."""

    tokens: int
    apart: bool  # the chunk has the tick for itself: that costs less
    ms: float  # by which it may make the tick longer


@njit(**INNER)
def interactive_chunk(state, tick, knobs, cost, memory, bounds, streams, slack):
    """The chunk of interactive prompts: a short one, or within the pace of readers, or by age.

    Within the pace it is worthwhile: fewer tokens may take as long, and streams wait for them too.
    """
    want = min(waiting_tokens(state, memory, KIND_PROMPT), bounds.tokens - streams.rows)
    least = min(max(memory.kept.worthwhile, MIN_CHUNK), want)
    best = chunk_within(cost, streams, slack.pace_ms, want)
    if best.tokens < least:
        best = chunk_within(cost, streams, NEARLY * slack.pace_ms, least)
        if best.tokens < least:
            best = chunk_within(cost, streams, slack.cap_ms, want)
    if best.tokens < want:
        s = prompt_after(state, memory, KIND_PROMPT, -1)
        left = state.n_tokens[s] - state.n_past[s]
        if best.tokens < left == memory.whole[s] <= min(SHORT_PROMPT, want):
            whole = chunk_within(cost, streams, slack.short_ms, left)
            if whole.tokens == left:
                return whole
    if best.tokens > 0 or want <= 0 or not knobs.features & AGEING:
        return best
    wait_ms = max(PROMPT_WAIT_MS, PROMPT_WAIT * memory.kept.longest_ms)
    if waited_ms(tick, memory.since_ns, SINCE_INTERACTIVE) > wait_ms:
        return Chunk(least, False, merged_ms(cost, streams, least) - streams.ms)
    return best


@njit(**INNER)
def chunk_within(cost, streams, ms, most):
    """The largest chunk that takes ``ms`` more: merged with the rows, or in a tick of its own.

    A short one in a tick of its own too, where that delays the rows no longer: its first token is
    sooner.
    """
    if most <= 0 or ms <= 0.0:
        return Chunk(0, False, ms)
    rows, limit_ms = streams.rows, streams.ms + ms
    merged = largest_chunk(cost, streams.mode, rows, streams.past, streams.behind, limit_ms, most)
    alone = largest_chunk(cost, streams.mode, 0, 0.0, streams.behind, ms, most)
    apart = alone > merged
    if 0 < alone == merged <= SHORT_PROMPT:
        in_turns = predict(cost, streams.mode, 0, alone, streams.behind) + streams.ms
        apart = in_turns <= AS_SOON * merged_ms(cost, streams, alone)
    return Chunk(max(merged, alone), apart, ms)


@njit(**INNER)
def merged_ms(cost, streams, tokens):
    """Predicted ms of a tick with the streams' rows and ``tokens`` of a prompt."""
    return predict_both(cost, streams.mode, streams.rows, streams.past, tokens, streams.behind)
