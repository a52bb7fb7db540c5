"""Prompts beside the ticks of an accelerator: chunks in a second context that stop when told.

A chunk there is submitted in parts, and between two of them it can be stopped (``engine.gate``).
So prompts get slices of time between ticks, of the length that the streams can bear, and the ticks
themselves have the accelerator for themselves:

- while interactive streams decode, what the cap leaves free before each tick, and now and then what
  the error budget leaves.  A prompt that somebody waits for gets more;
- while the ticks compute an interactive prompt, next to nothing: a slice for each ``BACK_WAIT_MS``;
- with nobody interactive, all the time; short prompts ride with the decoders then.

Where a row leaves most of the accelerator idle, a small chunk can go on through the ticks
(`_flow`).  It makes them longer by less than the cap.  What it does to them is learned
(``CostModel.flow``).

Decoders of the background ride with all ticks where that fits into the cap together with such a
chunk, or with a slice (`riders`).

Short prompts that come while somebody streams are left to the ticks, where copying their KV cells
would take longer than computing them.  So are prompts of which most is known.  What is known lies
in the first context, and the second would have to be given all of it.

Chunks are large, since large chunks are the cheapest for a token, but no part of a chunk may take
longer than a slice.  The KV cells of a chunk are copied into the first context between two ticks,
which makes a few tokens slow: `may_land` says when.

Long: whose chunk, how large and how long are decided together.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.base import (
    ALL_THE_TIME,
    ASIDE,
    BACK_WAIT_MS,
    ERROR_BUDGET,
    FLAG_ASIDE,
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_SPENT,
    FLOW,
    GUARD,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_BURST,
    KIND_DECODE,
    KIND_PROMPT,
    KIND_SHORT,
    LANES,
    SINCE_BESIDE,
    SINCE_DECODE,
)
from umaserve.policy.burst import release
from umaserve.policy.cost.model import (
    CHUNK_SIZES,
    FLOW_AGAIN,
    chunk_class,
    copy_ms,
    hand_over_ms,
    predict,
)
from umaserve.policy.fairness import is_late
from umaserve.policy.flags import mark
from umaserve.policy.latency_guard import (
    HARD,
    MARGIN,
    MOST_CREDIT,
    RESERVED,
    SPARE,
    earned,
    noise,
    poorest,
    strictest_cap,
)
from umaserve.policy.processor.offload import WORTH_IT, list_prompts, take_back

from .riders import ROOM, WAIT, apply, let_on, most_riders, ms_of, take_turns

# Credit that it takes to copy cells of the background, and of what has waited BACK_WAIT_MS.  The
# tick of the copy, the next one and often a third are late: a captured graph has to be made again.
LANDING, LANDING_LATE = 2.0, 0.5
AT_ONCE = 8  # prompts whose cells are copied between two ticks, where somebody waits for them
IDLE_WAIT_MS = 20.0  # with nothing else to do
FLOW_KNOWN = 24.0  # ticks after which what a chunk does to them is believed
FLOW_STARTS_MS = 0.5  # from the end of a small chunk to the begin of the next
FLOW_SHARE = 0.75  # of the tokens that slices would compute, where streams go on so much faster
SHORT = 64  # tokens of a background prompt that are left to the ticks where nobody is interactive


@njit(nogil=True, cache=True)
def may_land(state, lane, waited_ms):
    """Whether cells of a prompt of this lane may be copied now, which makes tokens late."""
    if lane == 0:
        return True
    return poorest(state) >= (LANDING_LATE if waited_ms > BACK_WAIT_MS else LANDING)


@njit(**INNER)
def beside(state, tick, knobs, cost, memory, plan):
    """List prompts in ``plan.aside`` and say how large their next chunk may be.

    How much time they get is said here too, unless somebody interactive decodes: `slice_between`.
    Returns whether somebody interactive waits for one of them, and how long ticks may take for
    interactive prompts that are left to them, in ms.
    """
    plan.aside[0] = -1
    found, since = memory.found, memory.since_ns
    prompts = found[KIND_PROMPT] + found[KIND_BACK_PROMPT] + found[KIND_ASIDE]
    if not knobs.features & ASIDE or prompts == 0:
        take_back(state, knobs, memory)
        since[SINCE_BESIDE] = tick.now_ns
        return False, 0.0
    decoding = found[KIND_DECODE]
    copies_ms = 0.0
    if decoding > 0 and knobs.features & LANES:
        copies_ms = _cheaper_in_ticks(state, knobs, cost, memory)
    if decoding + found[KIND_PROMPT] == 0 and found[KIND_BACK_DECODE] > 0:
        _leave_short(state, memory)
    # with no stream to disturb, an interactive prompt has the first context for itself
    list_prompts(state, memory, plan, decoding > 0 and copies_ms == 0.0)
    release(memory, KIND_SHORT, KIND_BACK_PROMPT)
    if found[KIND_ASIDE] == 0:
        since[SINCE_BESIDE] = tick.now_ns
        return False, copies_ms
    mark(plan, FLAG_ASIDE)
    waits = False
    if knobs.features & LANES:
        for s in range(memory.kind.shape[0]):
            if memory.kind[s] == KIND_ASIDE and state.lane[s] == 0:
                waits = True
    plan.info.chunk_beside = CHUNK_SIZES[-1]
    if decoding > 0:
        chunk = _chunk_between(state, knobs, cost, memory, waits)
        flow = 0
        if not waits and knobs.features & FLOW and knobs.features & GUARD:
            flow = _flow(state, tick, knobs, cost, memory, plan, chunk)
        if apply(knobs, memory):
            if not flow:
                _riders_with_slices(state, tick, knobs, cost, memory, plan, chunk, waits)
            if plan.info.riders_ms == 0.0:
                turn = take_turns(state, tick, knobs, cost, memory, plan)
                if turn and not waits:
                    chunk = flow = 0
        plan.info.chunk_beside = flow if flow else chunk
        if flow:  # a chunk in flight that stops for ticks gets slices all the same
            plan.info.flows = 1
            since[SINCE_BESIDE] = tick.now_ns
    elif waits or found[KIND_PROMPT] == 0:
        plan.info.slice_ms = ALL_THE_TIME
    elif is_late(tick, knobs, since, SINCE_BESIDE):
        plan.info.slice_ms = knobs.tick_budget_ms
    else:
        mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    if plan.info.slice_ms > 0.0:
        since[SINCE_BESIDE] = tick.now_ns
    if decoding + found[KIND_BACK_DECODE] + found[KIND_PROMPT] + found[KIND_BACK_PROMPT] == 0:
        plan.info.wait_ms = IDLE_WAIT_MS
    return waits, copies_ms


@njit(**INNER)
def _leave_short(state, memory):
    """Short prompts of the background ride with its decoders: weights are read once for both."""
    for s in range(memory.kind.shape[0]):
        left = state.n_tokens[s] - state.n_past[s]
        if memory.kind[s] == KIND_BACK_PROMPT and left <= SHORT:
            memory.kind[s] = KIND_SHORT
            memory.found[KIND_BACK_PROMPT] -= 1
            memory.found[KIND_SHORT] += 1


@njit(**INNER)
def _cheaper_in_ticks(state, knobs, cost, memory):
    """Take interactive prompts back to the ticks where copying all their cells would take longer.

    Either makes the streams wait.  Returns how long a tick may take for them, in ms; 0.0 where
    copying is the shorter, or unknown.
    """
    tokens, copies_ms = 0, 0.0
    for s in range(memory.kind.shape[0]):
        fresh = memory.kind[s] == KIND_PROMPT and state.aside[s] >= 0
        if fresh or memory.kind[s] == KIND_ASIDE and state.lane[s] == 0:
            left = state.n_tokens[s] - state.n_past[s]
            tokens, copies_ms = tokens + left, copies_ms + copy_ms(cost, left)
            if state.aside[s] == 0:
                copies_ms += hand_over_ms(cost, state.cached[s])
    tick_ms = predict(cost, 0, 0, tokens, memory.past[KIND_PROMPT])
    if not 0.0 < tick_ms <= copies_ms:
        return 0.0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_ASIDE and state.lane[s] == 0:
            memory.kind[s] = KIND_PROMPT
            memory.found[KIND_ASIDE] -= 1
            memory.found[KIND_PROMPT] += 1
    return min(copies_ms, knobs.tick_budget_ms)


@njit(**INNER)
def _chunk_between(state, knobs, cost, memory, waits):
    """The largest size with no part longer than an ordinary slice, else than the longest one."""
    base = memory.round_ms[0, memory.found[KIND_DECODE]]
    usual = (strictest_cap(state, knobs, memory) - 1.0) * MARGIN - SPARE
    if waits:
        usual = max(usual, WORTH_IT - 1.0)
    for share in (usual, HARD - 1.0):
        best = -1
        for i in range(CHUNK_SIZES.size):
            if cost.longest[i] == 0.0:  # one step into what is not known
                if best == i - 1:
                    best = i
                break
            if cost.longest[i] <= share * base:
                best = i
        if best >= 0:
            return CHUNK_SIZES[best]
    return CHUNK_SIZES[0]


@njit(**INNER)
def _flow(state, tick, knobs, cost, memory, plan, chunk):
    """Tokens of a chunk of the background that goes on through the ticks; 0 = slices are better.

    The largest size with which 19 in 20 ticks keep to the cap. While too many tokens are late all
    the same, it is the size before it, unless slices would compute more. The next size is tried
    where it should fit, else on credit. To tell, each further token is taken to cost what a token
    between the two sizes before it did. ``chunk``: what slices would be used for.  Says how long
    decoders of the background may make these ticks: ``PlanInfo.riders_ms``.
    """
    found = memory.found
    n = found[KIND_DECODE]
    base = memory.round_ms[0, n]
    rides = found[KIND_BACK_PROMPT] + found[KIND_PROMPT] + found[KIND_BURST]
    if rides or base <= 0.0 or memory.group[0, n] < n:
        return 0
    # a measured percentile needs no room for parts that may take longer than before
    share = (strictest_cap(state, knobs, memory) - 1.0) * MARGIN
    limit, rows_ms = (1.0 + share) * noise(memory, cost, 0, n), base
    if apply(knobs, memory):
        flow = cost.flow[0]
        times = max(flow.times, 1.0) if flow.seen >= FLOW_KNOWN else 1.0
        most_ms = min(limit * base, times * (1.0 + ROOM * share) * base)
        k = let_on(state, tick, memory, most_riders(knobs, cost, memory, times, most_ms))
        plan.info.riders_ms = ms_of(cost, memory, k)
        rows_ms += max(plan.info.riders_ms, 0.0)
        limit *= base / rows_ms
    best, known, last, ahead = -1, True, 1.0, 1.0
    for i in range(CHUNK_SIZES.size):
        flow = cost.flow[i]
        sure = flow.seen >= FLOW_KNOWN
        if sure and flow.times <= limit:
            best = i
            ahead = _next_times(i, last, flow.times)
            last = flow.times
            continue
        if flow.seen > 0.0:
            ahead = max(ahead, flow.times)
        old = tick.number - flow.at > FLOW_AGAIN
        if (old or not sure) and (ahead <= limit or poorest(state) >= 1.0):
            best, known = i, False
        break
    if best < 0 or not known:
        return CHUNK_SIZES[best] if best >= 0 else 0
    slice_ms = max((1.0 + share - SPARE) * base - rows_ms, 0.0)
    between = _between(cost, chunk, rows_ms, slice_ms)
    if best > 0 and poorest(state) < 0.0 and _through(cost, best - 1) > between:
        best -= 1  # too many tokens were late, whatever made them
    through = _through(cost, best)
    if through > between or through > FLOW_SHARE * between and _does_more(
        cost, best, chunk, rows_ms, slice_ms, between
    ):  # fmt: skip
        return CHUNK_SIZES[best]
    return 0


@njit(**INNER)
def _riders_with_slices(state, tick, knobs, cost, memory, plan, chunk, waits):
    """Decoders of the background that ride with each tick before which there is a slice: a part of
    a chunk has to fit too.  While somebody interactive waits for a prompt, nobody begins to ride.
    """
    base = memory.round_ms[0, memory.found[KIND_DECODE]]
    room_ms = (strictest_cap(state, knobs, memory) - 1.0) * MARGIN * base
    part_ms = max(cost.longest[chunk_class(chunk)], memory.kept.next_part_ms)
    most_ms = min(ROOM * room_ms, room_ms - SPARE * base - part_ms)
    k = most_riders(knobs, cost, memory, 1.0, base + most_ms)
    if waits and memory.kept.riders == 0:
        k = WAIT
    else:
        k = let_on(state, tick, memory, k)
    plan.info.riders_ms = ms_of(cost, memory, k)


@njit(**INNER)
def _does_more(cost, i, chunk, base, slice_ms, between):
    """Whether an accelerator gets more done by chunks of class ``i`` that go on through the ticks.

    By what it would take for one thing after the other: a round and the tokens of a prompt.
    """
    token_ms = cost.parts[chunk_class(chunk)] / chunk
    through = _through(cost, i) * token_ms + 1.0 / max(cost.flow[i].times, 1.0)
    return through > between * token_ms + base / (base + slice_ms)


@njit(**INNER)
def _next_times(i, last, times):
    """How many times longer ticks should take with the size after this one.

    ``last``, ``times``: with the one before this one, and with this one.
    """
    if i + 1 == CHUNK_SIZES.size:
        return times
    before = CHUNK_SIZES[i - 1] if i > 0 else 0
    more = (CHUNK_SIZES[i + 1] - CHUNK_SIZES[i]) / (CHUNK_SIZES[i] - before)
    return times + (times - last) * more


@njit(**INNER)
def _through(cost, i):
    """Prompt tokens per ms by chunks of this class that go on through the ticks."""
    return CHUNK_SIZES[i] / (cost.flow[i].ms + FLOW_STARTS_MS)


@njit(**INNER)
def _between(cost, chunk, base, slice_ms):
    """The same by slices; 0.0 where it is not known, or no part fits."""
    i = chunk_class(chunk)
    if cost.parts[i] <= 0.0 or cost.longest[i] > slice_ms:
        return 0.0
    # at the end of a slice there is no room for another part, half a long one in the mean
    used = slice_ms - 0.5 * cost.longest[i]
    return chunk / cost.parts[i] * used / (base + slice_ms)


@njit(**INNER)
def prompts_next(memory, waits):
    """Whether prompts beside the ticks go before background decoders: who waited longer does."""
    since = memory.since_ns
    if memory.found[KIND_ASIDE] == 0:
        return False
    late = since[SINCE_DECODE] >= since[SINCE_BESIDE]
    return waits or memory.found[KIND_BACK_DECODE] == 0 or late


@njit(**INNER)
def slice_between(tick, knobs, cost, memory, plan, waits, slack):
    """Say how long prompts beside the ticks go on before this tick of interactive streams.

    ``waits``: somebody interactive waits for one of them.  Where the ``slack`` allows it, credit is
    spent in two cases: the cap leaves too little, or there is more than can be kept.  The rest is
    for copying cells.  Returns the ms.
    """
    may_spend = slack.may_spend
    base_ms = memory.round_ms[0, memory.found[KIND_DECODE]]
    ms, next_ms = max(slack.cap_ms - SPARE * base_ms, 0.0), memory.kept.next_part_ms
    if ms < next_ms <= slack.cap_ms:
        ms = slack.cap_ms  # or all parts behind this one would wait for credit
    part_ms = next_ms
    if plan.info.flows == 0:
        part_ms = max(cost.longest[chunk_class(plan.info.chunk_beside)], next_ms)
    elif ms >= next_ms:
        may_spend = False  # the ticks are to be as long as with a chunk that goes on
    if plan.info.chunk_beside == 0:
        ms = 0.0  # it is the decoders' turn
    elif not knobs.features & GUARD:
        ms = ALL_THE_TIME
    elif waits:
        ms = max(ms, slack.budget_ms - (HARD - WORTH_IT) * base_ms)
    elif may_spend and knobs.features & ERROR_BUDGET and slack.budget_ms > slack.cap_ms:
        late = is_late(tick, knobs, memory.since_ns, SINCE_BESIDE)
        # what would be lost if it were not spent
        full = slack.credit >= MOST_CREDIT - earned(knobs)
        rich = slack.credit >= 1.0 + RESERVED and part_ms > ms or full
        if rich or late and slack.credit >= 1.0:
            ms = slack.budget_ms
            mark(plan, FLAG_SPENT)
    plan.info.slice_ms = ms
    if ms > 0.0 and ms >= part_ms:
        memory.since_ns[SINCE_BESIDE] = tick.now_ns
    if ms <= 0.0:
        mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    return ms
