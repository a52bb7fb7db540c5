"""Prompts beside the ticks of an accelerator: chunk by chunk in a second context.

An accelerator overlaps the kernels of two contexts.  While a chunk of a prompt is computed in the
second one, every tick takes longer by a factor that hardly depends on how many sessions decode and
grows with the chunk, and that is learned (``CostModel.beside``).  A chunk cannot be given up, so
chunks are handed out one at a time, of a size that the streams can bear:

- within the cap: one after the other, of the largest size whose factor fits, as long as the error
  budget is not spent: what begins and ends makes some ticks late that the factor says nothing of;
- beyond it: one at a time, paid from the error budget, of the size with the most prompt tokens for
  each slow token;
- with nobody interactive: the largest that end soon.  An interactive request that comes finds the
  first context free, though slower while one runs.

The KV cells of a chunk are copied into the first context between two ticks, which makes one token
slow: `may_land` says when.
"""

from __future__ import annotations

from numba import njit

from .base import (
    AGEING,
    ASIDE,
    BACK_WAIT_MS,
    CHUNK_BESIDE,
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
    KIND_PROMPT,
    LANES,
    RUNNING,
    RUNS_BESIDE,
    SINCE_BESIDE,
    SINCE_DECODE,
    WAIT_MS,
)
from .cost import BESIDE_SIZES, CHUNK_MS, FACTOR, SEEN, beside_class
from .flags import mark
from .jit import INNER
from .latency_guard import FAR_MS, HARD, MARGIN, RESERVED, strictest_cap
from .offload import WORTH_IT, list_prompts, take_back

GOING_ON = 1.0  # credit that a background chunk within the cap takes
LANDING = 0.5  # the same to copy its cells, which goes before the next chunk
MOST_SLOW = 12.0  # ticks that one chunk may slow beyond the cap
LONG_MS = 2.0  # tick budgets that a chunk may take with nobody interactive there
IDLE_WAIT_MS = 20.0  # with nothing else to do


@njit(nogil=True, cache=True)
def factor_beside(cost, tokens):
    """How many times longer a tick takes beside a chunk of so many tokens; 1.0 = none, unknown."""
    if tokens <= 0:
        return 1.0
    return max(cost.beside[beside_class(tokens), FACTOR], 1.0)


@njit(nogil=True, cache=True)
def is_usable(cost):
    """Whether chunks of some size slow ticks by less than what no pause may exceed.

    Nothing known counts as usable: the smallest chunk will tell.
    """
    for i in range(BESIDE_SIZES.size):
        if cost.beside[i, SEEN] > 0.0 and cost.beside[i, FACTOR] <= HARD:
            return True
    return cost.beside[0, SEEN] == 0.0


@njit(nogil=True, cache=True)
def may_land(state, lane):
    """Whether cells of a prompt of this lane may be copied now, which makes a token late."""
    if lane == 0:
        return True
    return poorest(state) >= LANDING


@njit(nogil=True, cache=True)
def poorest(state):
    """The least credit of the interactive sessions that decode; much if there are none."""
    least = FAR_MS
    for s in range(state.state.shape[0]):
        decodes = state.n_tokens[s] - state.n_past[s] == 1
        if state.state[s] == RUNNING and state.lane[s] == 0 and decodes:
            least = min(least, state.credit[s])
    return least


@njit(nogil=True, cache=True)
def beside(state, tick, knobs, cost, memory, plan):
    """List prompts in ``plan.aside`` and say how much of them may be computed next."""
    plan.aside[0] = -1
    found, since = memory.found, memory.since_ns
    if tick.beside > 0:
        plan.info[RUNS_BESIDE] = factor_beside(cost, tick.beside)
        mark(plan, FLAG_ASIDE)
    prompts = found[KIND_PROMPT] + found[KIND_BACK_PROMPT] + found[KIND_ASIDE]
    if not knobs.features & ASIDE or prompts == 0 or not is_usable(cost):
        take_back(state, knobs, memory)
        since[SINCE_BESIDE] = tick.now_ns
        return
    decoding = found[KIND_DECODE]
    # with no stream to disturb, an interactive prompt has the first context for itself
    list_prompts(state, memory, plan, decoding > 0)
    if found[KIND_ASIDE] == 0:
        since[SINCE_BESIDE] = tick.now_ns
        return
    waits = False
    if knobs.features & LANES:
        for s in range(memory.kind.shape[0]):
            if memory.kind[s] == KIND_ASIDE and state.lane[s] == 0:
                waits = True
    if decoding == 0:
        chunk = _alone(tick, knobs, cost, memory)
    else:
        chunk = _among_streams(state, tick, knobs, cost, memory, plan, waits)
    plan.info[CHUNK_BESIDE] = chunk
    if chunk > 0:
        since[SINCE_BESIDE] = tick.now_ns
    elif not waits:
        mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    if decoding + found[KIND_BACK_DECODE] + found[KIND_PROMPT] + found[KIND_BACK_PROMPT] == 0:
        plan.info[WAIT_MS] = IDLE_WAIT_MS


@njit(**INNER)
def _alone(tick, knobs, cost, memory):
    """Nobody interactive decodes."""
    if memory.found[KIND_PROMPT] > 0:
        # somebody interactive waits for a first token; background waits, though not for ever
        late = (tick.now_ns - memory.since_ns[SINCE_BESIDE]) / 1e6 > BACK_WAIT_MS
        return BESIDE_SIZES[0] if late and knobs.features & AGEING else 0
    best = 0
    for i in range(BESIDE_SIZES.size):
        ms = cost.beside[i, CHUNK_MS]
        if i == 0 or ms <= LONG_MS * knobs.tick_budget_ms:
            best = i
            if ms == 0.0:
                break  # one step into what is not known
    return BESIDE_SIZES[best]


@njit(**INNER)
def _among_streams(state, tick, knobs, cost, memory, plan, waits):
    """Tokens of the next chunk while interactive sessions decode; 0 = none now."""
    found, since = memory.found, memory.since_ns
    if not knobs.features & GUARD:
        return BESIDE_SIZES[-1]
    limit = 1.0 + (strictest_cap(state, knobs, memory) - 1.0) * MARGIN
    if waits:
        limit = max(limit, WORTH_IT)
    best = -1
    for i in range(BESIDE_SIZES.size):
        if cost.beside[i, SEEN] == 0.0:
            if best == i - 1 and (waits or poorest(state) >= 1.0 + RESERVED):
                best = i  # one step beyond what fits, on the error budget
            break
        if cost.beside[i, FACTOR] <= limit:
            best = i
    if best >= 0 and not waits and poorest(state) < GOING_ON:
        return 0
    if best >= 0:
        if waits or not found[KIND_BACK_DECODE] or _their_turn(tick, cost, memory, best):
            return BESIDE_SIZES[best]
        return 0
    if waits:
        return BESIDE_SIZES[0]
    if tick.beside > 0 or not knobs.features & ERROR_BUDGET or memory.holdoff[0] > 0:
        return 0
    credit = poorest(state)
    if credit >= 1.0 + RESERVED:
        best = _thriftiest(cost, memory.round_ms[0, found[KIND_DECODE]])
    elif credit >= 1.0 and (tick.now_ns - since[SINCE_BESIDE]) / 1e6 > BACK_WAIT_MS:
        best = 0
    if best < 0:
        return 0
    mark(plan, FLAG_SPENT)
    return BESIDE_SIZES[best]


@njit(**INNER)
def _their_turn(tick, cost, memory, i):
    """Background decoders ride with the streams between two chunks: who waited longer goes on."""
    since = memory.since_ns
    if since[SINCE_DECODE] >= since[SINCE_BESIDE]:
        return True
    return (tick.now_ns - since[SINCE_BESIDE]) / 1e6 >= 2.0 * cost.beside[i, CHUNK_MS]


@njit(**INNER)
def _thriftiest(cost, base_ms):
    """The size with the most prompt tokens for each slow token; -1 = none that may be."""
    best, rate = -1, 0.0
    for i in range(BESIDE_SIZES.size):
        factor, chunk_ms = cost.beside[i, FACTOR], cost.beside[i, CHUNK_MS]
        known = cost.beside[i, SEEN] > 0.0 and chunk_ms > 0.0
        if not known or factor > HARD or base_ms <= 0.0:
            continue
        # one more for copying its cells
        slow = chunk_ms / (base_ms * factor) + 1.0
        if (slow <= MOST_SLOW or best < 0) and BESIDE_SIZES[i] / slow > rate:
            best, rate = i, BESIDE_SIZES[i] / slow
    return best
