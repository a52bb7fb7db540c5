"""Slices of time between the ticks of a processor, for background prompts while streams decode.

What the cap leaves of each round is used in one of two ways.  A few prompt tokens are merged into
the tick, or a chunk of a prompt goes on for so long before it (`engine.chunk_stack`).  A tick reads
all weights once however few tokens ride, and a token that does may need other kernels for all rows.
A chunk reads them once for all its tokens, and its parts fit into a little time.  Which computes
more depends on the machine.  Where one row is bound by memory and the arithmetic for some more is
free, merging does.  Where one row keeps the cores busy, slices do.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import (
    ERROR_BUDGET,
    FLAG_ASIDE,
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_SPENT,
    GUARD,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    LANES,
    SINCE_BESIDE,
    SINCE_DECODE,
    SLICES,
)
from umaserve.policy.cost.model import CHUNK_SIZES, TILED, chunk_class
from umaserve.policy.cost.prediction import largest_chunk
from umaserve.policy.latency_guard import EARNED, SPARE, strictest_cap

from .offload import list_prompts

SLICED_CHUNK = 128  # tokens of a chunk at most
FORGOTTEN = 0.99  # of what the longest part of a smaller chunk took, for each tick that one waits
CHANGE = 1.3  # times as many tokens it takes to change from one way to the other
NEEDED = GUARD + LANES + SLICES


@njit(**INNER)
def slices(state, tick, knobs, cost, memory, plan):
    """List background prompts in ``plan.aside`` if slices between ticks compute more of them.

    ``PlanInfo.chunk_beside`` is set then.  To be called where no prompts are computed on cores of
    their own; how much time they get, `grant_slice` says.
    """
    found, since = memory.found, memory.since_ns
    if found[KIND_DECODE] and found[KIND_BACK_PROMPT] and knobs.features & NEEDED == NEEDED:
        chunk = _chunk(state, knobs, cost, memory)
        if _pay(state, knobs, cost, memory, chunk):
            list_prompts(state, knobs, cost, memory, plan, False)
            if found[KIND_ASIDE]:
                plan.info.marks |= FLAG_ASIDE
                plan.info.chunk_beside = chunk
                if _too_long(state, knobs, cost, memory, chunk):
                    plan.info.redoes = 1
    if found[KIND_ASIDE] == 0:
        since[SINCE_BESIDE] = tick.now_ns


@njit(**INNER)
def grant_slice(tick, cost, memory, plan, slack):
    """Grant the chunk a slice before this tick of streams; returns its ms.

    A slice is what the cap leaves, or a late tick where the streams have credit for it.
    """
    if not prompts_next(memory):
        return 0.0
    base_ms = memory.round_ms[0, memory.found[KIND_DECODE]]
    ms, next_ms = max(slack.cap_ms - SPARE * base_ms, 0.0), memory.kept.next_part_ms
    if ms < next_ms <= slack.cap_ms:
        ms = slack.cap_ms  # or all parts behind this one would wait for credit
    part_ms = max(cost.longest[chunk_class(plan.info.chunk_beside)], next_ms)
    if slack.late_ms > ms:
        ms = slack.late_ms
        plan.info.marks |= FLAG_SPENT
    plan.info.slice_ms = ms
    if ms > 0.0 and ms >= part_ms:
        memory.since_ns[SINCE_BESIDE] = tick.now_ns
    if ms <= 0.0:
        plan.info.marks |= FLAG_GUARDED | FLAG_SKIPPED_PREFILL
    return ms


@njit(**INNER)
def prompts_next(memory):
    """Whether prompts between the ticks go before background decoders: who waited longer does."""
    since = memory.since_ns
    return memory.found[KIND_BACK_DECODE] == 0 or since[SINCE_DECODE] >= since[SINCE_BESIDE]


@njit(nogil=True, cache=True)
def learn_longest(cost, tokens, ms, waits):
    """Take a part of a chunk into account that has not ended, and may not for long, since this part
    fits into no slice.  Attention takes longer with more KV cells before the chunk.

    Larger ones with the same kernel have no shorter one.  ``waits``: the next part was too long for
    the last slice.  Smaller chunks are believed to be a little shorter then, with each tick.  What
    theirs took may have been with other cells before them, and no chunk would end to find out.
    """
    first = chunk_class(tokens)
    if waits:
        for i in range(first):
            cost.longest[i] *= FORGOTTEN
    for i in range(first, CHUNK_SIZES.size):
        if tokens < TILED <= CHUNK_SIZES[i]:
            break
        if cost.longest[i] > 0.0 or i == first:
            cost.longest[i] = max(cost.longest[i], ms)


@njit(**INNER)
def _chunk(state, knobs, cost, memory):
    """The size of which an ordinary slice computes most, of those with no part that is longer; if
    there is none, of the longest slice.  Those from `TILED` on come first.

    The size after one that fits is tried if it is not known.  A larger one may have shorter parts.
    """
    base = memory.round_ms[0, memory.found[KIND_DECODE]]
    usual = strictest_cap(state, knobs, memory) - 1.0 - SPARE
    late = memory.kept.longest_ms / base - 1.0 if base > 0.0 else usual
    for share in (usual, late):
        small, large, rate, fits = -1, -1, 0.0, True
        for i in range(CHUNK_SIZES.size):
            if CHUNK_SIZES[i] > SLICED_CHUNK:
                break
            if cost.parts[i] <= 0.0:
                if fits:
                    return CHUNK_SIZES[i]
                continue
            fits = cost.longest[i] <= share * base
            computes = CHUNK_SIZES[i] / cost.parts[i] * _used(share * base, cost.longest[i])
            if not fits or large >= 0 and computes <= rate:
                continue
            if CHUNK_SIZES[i] >= TILED:
                large, rate = i, computes
            elif small < 0 or computes > rate:
                small, rate = i, computes
        if large >= 0 or small >= 0:
            return CHUNK_SIZES[large if large >= 0 else small]
    return CHUNK_SIZES[0]


@njit(**INNER)
def _too_long(state, knobs, cost, memory, chunk):
    """Whether the chunk under way has a part that the cap leaves no room for, while those of a
    smaller one fit.  Each layer has such a part, and all that is behind would wait for credit."""
    next_ms, tokens = memory.kept.next_part_ms, memory.kept.next_part_tokens
    size, under_way = chunk_class(chunk), chunk_class(int(tokens))
    if tokens == 0.0 or size >= under_way:
        return False
    base = memory.round_ms[0, memory.found[KIND_DECODE]]
    cap = strictest_cap(state, knobs, memory) - 1.0
    return next_ms > cap * base and 0.0 < cost.longest[size] <= (cap - SPARE) * base


@njit(**INNER)
def _pay(state, knobs, cost, memory, chunk):
    """Whether slices compute more than tokens merged into the ticks; unknown, they are tried."""
    n, past = memory.found[KIND_DECODE], memory.past[KIND_DECODE]
    behind = memory.past[KIND_BACK_PROMPT]
    base = memory.round_ms[0, n]
    if base <= 0.0:
        return False  # nothing is bounded yet
    i = chunk_class(chunk)
    if cost.parts[i] <= 0.0:
        return True
    g = memory.group[0, n]
    sliced = merged = 0.0
    # 4 tokens in 100 may be later than the cap
    cap = strictest_cap(state, knobs, memory) - 1.0
    late = cap
    if knobs.features & ERROR_BUDGET:
        late = max(memory.kept.longest_ms / base - 1.0, cap)
    for share, times in ((1.0 - EARNED, cap), (EARNED, late)):
        # ticks vary, and on the edge of the cap every other one leaves no room for a token
        ms = min(times * base, knobs.tick_budget_ms) - SPARE * base
        limit = memory.alone_ms[0, g] + ms
        merged += share * largest_chunk(cost, 0, g, past, behind, limit, knobs.n_batch)
        if ms >= cost.longest[i]:
            sliced += share * chunk / cost.parts[i] * _used(ms, cost.longest[i])
    for s in range(memory.kind.shape[0]):
        if state.aside[s] > 0:
            return sliced * CHANGE >= merged
    return sliced >= merged * CHANGE


@njit(**INNER)
def _used(ms, part_ms):
    """How much of a slice is used: by whole parts, of which few are shorter than the longest.
    Where there is much room for short ones, all but half a long one in the mean."""
    return max(ms // part_ms * part_ms if part_ms > 0.0 else 0.0, ms - 0.5 * part_ms)
