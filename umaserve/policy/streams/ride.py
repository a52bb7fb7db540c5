"""Background that rides with streams: decoders or prompts, whichever waited longer.

It rides within the latency cap, else in a late tick that spends credit of the streams.
"""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import KIND_BACK_DECODE, KIND_BACK_PROMPT, SINCE_DECODE, SINCE_PROMPT
from umaserve.policy.cost.prediction import largest_chunk, predict, predict_both
from umaserve.policy.fairness import is_late
from umaserve.policy.prompts import MIN_CHUNK, waiting_tokens

from .chunk import chunk_within


class Background(NamedTuple):
    """Background work that may ride, and the room for it."""

    decoders: int
    tokens: int  # of prompts
    decoders_first: bool  # they waited longer than the prompts
    rows: int  # decoding rows of a tick
    room: int  # tokens that may ride with the streams' rows and the interactive chunk
    chunk: int  # tokens of that chunk


class Ride(NamedTuple):
    """Background that rides with this tick."""

    rows: int
    tokens: int
    apart: bool  # instead of the streams: their rows wait for the next tick
    ms: float  # on credit: by which the tick may be longer; else 0.0


@njit(**INNER)
def background_of(state, memory, bounds, streams, chunk):
    """The background that waits for this tick, to ride with the streams and their chunk."""
    back, back_prompts = memory.found[KIND_BACK_DECODE], memory.found[KIND_BACK_PROMPT]
    tokens = 0
    if back_prompts:
        tokens = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), bounds.background_tokens)
    since_decode, since_prompt = memory.since_ns[SINCE_DECODE], memory.since_ns[SINCE_PROMPT]
    return Background(
        back, tokens, back > 0 and (back_prompts == 0 or since_decode <= since_prompt),
        bounds.rows, bounds.tokens - streams.rows - chunk.tokens, chunk.tokens,
    )  # fmt: skip


@njit(**INNER)
def choose_ride(tick, knobs, cost, memory, streams, slack, background):
    """Background that rides with this tick, and the ms on credit."""
    rows, tokens, apart = _fitting(cost, streams, background, slack.cap_ms)
    if rows + tokens or slack.late_ms <= slack.cap_ms or background.chunk:
        return Ride(rows, tokens, apart, 0.0)
    late = background
    if memory.kept.shared:
        # a stream beyond its program's share spends nobody's credit
        late = Background(
            0, background.tokens, False, background.rows, background.room, background.chunk
        )
    rows, tokens, apart = _fitting(cost, streams, late, slack.late_ms)
    if rows + tokens == 0:
        # no cost is known, or none fits: the least is tried after a while
        what = SINCE_DECODE if background.decoders_first else SINCE_PROMPT
        if is_late(tick, knobs, memory.since_ns, what):
            rows = 1 if background.decoders_first else 0
            tokens = 0 if rows else min(MIN_CHUNK, background.tokens)
            apart = True
    return Ride(rows, tokens, apart, slack.late_ms)


@njit(**INNER)
def _fitting(cost, streams, background, ms):
    """Rows and prompt tokens that take ``ms`` more, and whether they have the tick for themselves.

    Prompts share the tick with rows that go first; rows get it only where no prompt token fits.
    """
    rows = tokens = 0
    apart = False
    if background.decoders_first:
        rows, apart = _rows(cost, streams, background, ms)
    if background.tokens > 0 and not apart:
        tokens, apart = _tokens(cost, streams, background, rows, ms)
    if background.decoders > 0 and not background.decoders_first and tokens == 0:
        rows, apart = _rows(cost, streams, background, ms)
    return rows, tokens, apart


@njit(**INNER)
def _rows(cost, streams, background, ms):
    """Background rows that take ``ms`` more, and whether in a tick of their own."""
    most = min(min(background.decoders, background.rows - streams.rows), background.room)
    for k in range(most, 0, -1):
        together = predict_both(
            cost, streams.mode, streams.rows + k, streams.past, background.chunk, streams.behind
        )
        if 0.0 < together <= streams.ms + ms:
            return k, False
    if background.chunk == 0:
        for k in range(min(background.decoders, background.rows), 0, -1):
            if 0.0 < predict(cost, streams.mode, k, 0, streams.past) <= ms:
                return k, True
    return 0, False


@njit(**INNER)
def _tokens(cost, streams, background, rows, ms):
    """Background prompt tokens that take ``ms`` more, and whether in a tick of their own."""
    left = min(background.tokens, background.room - rows)
    chunk = background.chunk
    if rows or chunk:
        together, limit_ms = streams.rows + rows, streams.ms + ms
        most = largest_chunk(
            cost, streams.mode, together, streams.past, streams.behind, limit_ms, chunk + left
        )
        return max(most - chunk, 0), False
    fits = chunk_within(cost, streams, ms, left)
    return fits.tokens, fits.apart
