"""What of the background rides with streams: decoders or prompts, whoever waited longer.

There are three reasons for a ride, tried in this order: `on_credit`, `within_cap`, `by_age`.
"""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.base import (
    AGEING,
    BACK_WAIT_MS,
    FLAG_SPENT,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    SINCE_DECODE,
    SINCE_PROMPT,
)
from umaserve.policy.cost.model import (
    N_PROMPTS,
    PROMPT_EDGES,
    is_fresh,
    is_known,
    is_old,
    largest_chunk,
    predict,
    prompt_class,
)
from umaserve.policy.fairness import waited_ms
from umaserve.policy.latency_guard import HARD, RESERVED
from umaserve.policy.prompts import MIN_CHUNK, waiting_tokens

from .chunk import chunk_within

SLICE_SIZES, DEAR = 4, 2.0  # 4 to 32 prompt tokens, while they cost at most 2 rounds
LOOK_WIDER = 16  # ticks after which a chunk one size larger may be tried
BOTH = 0.15  # of the baseline by which a tick of as many background rows may exceed HARD


class Background(NamedTuple):
    """Background work that may ride, and the room for it."""

    decoders: int
    tokens: int  # of prompts
    decoders_first: bool  # they waited longer than the prompts
    put_off: bool  # on an accelerator, decoders wait for credit to ride with all ticks: `riders`
    rows: int  # decoding rows of a tick
    room: int  # tokens that may ride with the streams' rows and the interactive chunk
    chunk: int  # tokens of that chunk


class Ride(NamedTuple):
    """What of the background rides with this tick."""

    rows: int
    tokens: int
    apart: bool  # instead of the streams: their rows wait for the next tick
    on_credit: bool
    ms: float  # on credit: by which the tick may be longer


@njit(**INNER)
def background_of(state, memory, plan, bounds, streams, chunk):
    """The background that waits for this tick, to ride with the streams and their chunk."""
    back, back_prompts = memory.found[KIND_BACK_DECODE], memory.found[KIND_BACK_PROMPT]
    tokens = 0
    if back_prompts:
        tokens = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), bounds.background_tokens)
    since_decode, since_prompt = memory.since_ns[SINCE_DECODE], memory.since_ns[SINCE_PROMPT]
    return Background(
        back, tokens, back > 0 and (back_prompts == 0 or since_decode <= since_prompt),
        plan.info.riders_ms < 0.0, bounds.rows, bounds.tokens - streams.rows - chunk.tokens,
        chunk.tokens,
    )  # fmt: skip


@njit(**INNER)
def choose_ride(tick, knobs, cost, memory, plan, streams, slack, background):
    """What of the background rides: who waited longer goes first."""
    spent = plan.info.marks & FLAG_SPENT != 0
    ride = on_credit(cost, streams, slack, background, spent)
    if ride.rows + ride.tokens == 0:
        ride = within_cap(tick, cost, streams, slack, background)
    if ride.rows + ride.tokens == 0:
        ride = by_age(tick, knobs, cost, memory.since_ns, streams, slack, background)
    return ride


@njit(**INNER)
def on_credit(cost, streams, slack, background, spent):
    """What rides on the error budget, of which one token's credit stays for an interactive prompt.

    ``spent``: prompts beside the ticks have spent of it before this tick.
    """
    nothing = Ride(0, 0, False, False, 0.0)
    if not slack.may_spend or slack.credit < 1.0 + RESERVED or background.chunk:
        return nothing
    if background.put_off:
        # a pause of twice the baseline, since a tick of fewer rows has another shape
        rows = min(streams.rows, background.decoders)
        own_ms = predict(cost, streams.mode, rows, 0, streams.past)
        if spent or own_ms > slack.budget_ms + BOTH * streams.ms:
            return nothing
        return Ride(rows, 0, True, True, 0.0)
    if slack.budget_ms <= slack.cap_ms:
        return nothing
    rows, tokens, apart = _fitting(cost, streams, background, slack.budget_ms, False)
    return Ride(rows, tokens, apart, True, slack.budget_ms)


@njit(**INNER)
def within_cap(tick, cost, streams, slack, background):
    """What rides within the latency cap; now and then a chunk one size larger is tried."""
    if background.put_off:
        return Ride(0, 0, False, False, 0.0)
    wider = tick.number % LOOK_WIDER == 0 and slack.may_spend and slack.credit >= 1.0
    wider = wider and slack.cap_ms > 0.0
    rows, tokens, apart = _fitting(cost, streams, background, slack.cap_ms, wider)
    return Ride(rows, tokens, apart, False, 0.0)


@njit(**INNER)
def by_age(tick, knobs, cost, since, streams, slack, background):
    """The least that rides because it waited for so long, paid with credit for one slow token."""
    waited = waited_ms(tick, since, SINCE_DECODE if background.decoders_first else SINCE_PROMPT)
    least = 1.0
    if background.put_off and waited > 2.0 * BACK_WAIT_MS:
        least = 0.0  # cells that are copied take what there is of it
    nothing = Ride(0, 0, False, False, 0.0)
    if not knobs.features & AGEING or slack.credit < least or background.chunk:
        return nothing
    if streams.guarded and waited < BACK_WAIT_MS:
        return nothing
    if background.put_off:
        return Ride(min(streams.rows, background.decoders), 0, True, True, 0.0)
    if not background.decoders_first:
        tokens, apart = _few_tokens(tick, cost, streams, slack, background)
        if tokens > 0:
            return Ride(0, tokens, apart, True, 0.0)
    if background.decoders > 0:
        rows, apart = _one_row(cost, streams, background)
        return Ride(rows, 0, apart, True, 0.0)
    return nothing


@njit(**INNER)
def _fitting(cost, streams, background, ms, wider):
    """Rows and prompt tokens that take ``ms`` more, and whether they have the tick for themselves.

    Prompts share the tick with rows that go first; rows get it only where no prompt token fits.
    """
    rows = tokens = 0
    apart = False
    if background.decoders_first:
        rows, apart = _rows(cost, streams, background, ms)
    if background.tokens > 0 and not apart:
        tokens, apart = _tokens(cost, streams, background, rows, ms, wider)
    if background.decoders > 0 and not background.decoders_first and tokens == 0:
        rows, apart = _rows(cost, streams, background, ms)
    return rows, tokens, apart


@njit(**INNER)
def _rows(cost, streams, background, ms):
    """Background rows that take ``ms`` more, and whether in a tick of their own."""
    rows = _merged_rows(cost, streams, background, ms)
    if rows == 0 and background.chunk == 0:
        for k in range(min(background.decoders, background.rows), 0, -1):
            if 0.0 < predict(cost, streams.mode, k, 0, streams.past) <= ms:
                return k, True
    return rows, False


@njit(**INNER)
def _merged_rows(cost, streams, background, ms):
    most = min(min(background.decoders, background.rows - streams.rows), background.room)
    for k in range(most, 0, -1):
        together = predict(cost, streams.mode, streams.rows + k, background.chunk, streams.past)
        if 0.0 < together <= streams.ms + ms:
            return k
    return 0


@njit(**INNER)
def _tokens(cost, streams, background, rows, ms, wider):
    """Background prompt tokens that take ``ms`` more, and whether in a tick of their own."""
    left = min(background.tokens, background.room - rows)
    chunk = background.chunk
    if rows or chunk:
        together = streams.rows + rows
        most = largest_chunk(
            cost, streams.mode, together, streams.past, streams.ms + ms, chunk + left
        )  # fmt: skip
        return max(most - chunk, 0), False
    fits = chunk_within(cost, streams, ms, left)
    if wider and not fits.apart:
        return min(_one_size_more(cost, streams, fits.tokens), left), False
    return fits.tokens, fits.apart


@njit(**INNER)
def _one_size_more(cost, streams, tokens):
    """The next larger size of a chunk, if it was not seen for long; else ``tokens``.

    It makes a token late, as a slice does that has more tokens: no more often than needed.
    """
    at = prompt_class(tokens) + 1
    if at >= N_PROMPTS - 1:
        return tokens
    more = PROMPT_EDGES[at]
    near = predict(cost, streams.mode, streams.rows, more, streams.past) <= HARD * streams.ms
    return more if near and is_old(cost, streams.mode, streams.rows, more) else tokens


@njit(**INNER)
def _one_row(cost, streams, background):
    """One background row, with the streams or alone: whichever keeps them waiting less.

    More ride where that takes a millisecond less than the streams alone: another kernel may.
    """
    rows = _merged_rows(cost, streams, background, -1.0)
    if rows > 0:
        return rows, False
    more_ms = predict(cost, streams.mode, streams.rows + 1, 0, streams.past) - streams.ms
    full = background.rows <= streams.rows or background.room <= 0
    return 1, full or predict(cost, streams.mode, 1, 0, streams.past) < more_ms


@njit(**INNER)
def _few_tokens(tick, cost, streams, slack, background):
    """The smallest part of a background prompt, and whether it has the tick for itself."""
    left, mode, past = min(background.tokens, background.room), streams.mode, streams.past
    # a token or two merged with the rows may fit the cap. That is worth knowing, and finding out
    # again, as long as it is not far from it
    few = 2 if is_fresh(cost, mode, streams.rows, 1) else 1
    look = not is_known(cost, mode, streams.rows, few)
    if not look and not is_fresh(cost, mode, streams.rows, few):
        look = predict(cost, mode, streams.rows, few, past) <= HARD * streams.ms
    if look and background.room > 0:
        return min(few, left), False
    if streams.guarded:
        # what keeps the pause within bounds, unless that is next to nothing
        fits = chunk_within(cost, streams, slack.budget_ms, left)
        if fits.tokens >= MIN_CHUNK // 4:
            return fits.tokens, fits.apart
    # sizes take turns: what they cost is learned by it
    size = MIN_CHUNK // 2 << (tick.number % SLICE_SIZES)
    while size > 1 and predict(cost, mode, 0, size, past) > DEAR * streams.ms:
        size //= 2
    return min(size, left), True
