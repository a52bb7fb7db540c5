"""The policy in use: interactive streams keep their pace, everything else fills what is free.

`plan_tick` composes the parts of this package; each can be switched off by ``Knobs.features``.
There are three kinds of tick.  Somebody interactive decodes: the latency guard bounds it.  Nobody
does, but an interactive prompt waits: it goes first.  Neither: throughput under the tick budget.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .accelerator.beside import beside, prompts_next, slice_between
from .accelerator.riders import apply, ride_alone
from .base import (
    ABORT,
    ABORT_MS,
    AGEING,
    ALLOWED_MS,
    BACK_WAIT_MS,
    ERROR_BUDGET,
    FLAG_ASIDE,
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_SPENT,
    FLAGS,
    FLOWS,
    GUARD,
    INTERACTIVE_ROWS,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_BURST,
    KIND_DECODE,
    KIND_PROMPT,
    MODE,
    PASSENGERS,
    PREDICTED_MS,
    RIDERS_COUNT,
    RIDERS_MS,
    SINCE_ANYBODY,
    SINCE_BESIDE,
    SINCE_DECODE,
    SINCE_INTERACTIVE,
    SINCE_PROMPT,
    SWEET_SPOT,
)
from .burst import gather, release
from .bytes.trim import background_tokens, hold_back
from .cost.model import (
    FADED,
    N_PROMPTS,
    PROMPT_EDGES,
    efficient_chunk,
    is_fresh,
    is_known,
    is_old,
    largest_chunk,
    predict,
    prompt_class,
)
from .cost.sweet_spot import (
    HARDLY_KNOWN,
    WELL_KNOWN,
    find_rounds,
    go_on_looking,
    look_again,
    merge_all,
)
from .fairness import add_decoders
from .flags import mark
from .isolation import isolate
from .latency_guard import HARD, RESERVED, allowance
from .processor.offload import offload, take_back
from .processor.slices import slices
from .prompts import add_prompts, waiting_tokens
from .survey import survey

MIN_CHUNK = 8  # prompt tokens that a slice takes at least: below this, progress costs too much
BLIND_CHUNK = 64  # prompt tokens of a tick whose cost nobody knows
# tick budgets that a tick of prompts may take if it can be given up at any moment: of interactive
# ones, which only a long one gives way to, and of the background's; the last where nobody
# interactive has come for as long, so that what is given up is half of what was done at most
LONG_TICKS, LONGER_TICKS, LONGEST_TICKS = 8, 20, 40
GIVEN_UP = 0.8  # of the predicted time, or all but one tick budget: after that it is nearly done
SLICE_SIZES, DEAR = 4, 2.0  # 4 to 32 prompt tokens, while they cost at most 2 rounds
PROMPT_WAIT_MS = 250.0  # the same for an interactive prompt
SHORT_PROMPT = 64  # tokens of an interactive prompt for which ticks may take twice the baseline
LOOK_WIDER = 16  # ticks after which a chunk one size larger may be tried
LOOK_SOON, LOOK_AGAIN = 4, 64  # ticks after which a split that rests on little is checked
EFFICIENT = 0.85  # of the best rate, for a chunk that nobody can stop
HOLDOFF = 8  # ticks without passengers after one that overran
OVERRUN = 1.25  # of what was allowed
BOTH = 0.15  # of the baseline by which a tick of as many background rows may exceed HARD


@njit(nogil=True, cache=True)
def plan_tick(state, tick, knobs, cost, memory, traffic, plan):
    """Fill ``plan`` for one tick; returns the number of entries (0 = nothing to do)."""
    plan.info[:] = 0.0
    plan.aside[0] = -1
    survey(state, tick, knobs, memory)
    entries = isolate(state, tick, knobs, memory, plan)
    if entries:
        return entries
    hold_back(tick, knobs, memory, plan)
    found = memory.found
    n, back = found[KIND_DECODE], found[KIND_BACK_DECODE]
    if n > 0 or found[KIND_PROMPT] > 0:
        memory.since_ns[SINCE_ANYBODY] = tick.now_ns
    most = knobs.n_batch
    if knobs.max_merge > 0:
        most = min(most, knobs.max_merge)
    past = memory.past[KIND_DECODE if n else KIND_BACK_DECODE]
    for mode in range(2 if knobs.can_aside and not knobs.paced else 1):
        if knobs.features & SWEET_SPOT:
            find_rounds(memory, cost, mode, max(n, back), most, past)
        else:
            merge_all(memory, cost, mode, max(n, back), most, past)
    if not go_on_looking(memory, 0, max(n, back), most) and tick.number % LOOK_SOON == 0:
        doubt = WELL_KNOWN if tick.number % LOOK_AGAIN == 0 else HARDLY_KNOWN
        if n > 0 or knobs.paced:
            # streams pause for it, or it takes several ticks: once after the counts have faded
            doubt = FADED + 1.0
        look_again(memory, cost, 0, max(n, back), most, doubt, knobs.paced)
    mode, waits, copies_ms = 0, False, 0.0
    burst, burst_ms = gather(state, tick, knobs, cost, memory)
    if knobs.can_aside and knobs.paced:
        waits, copies_ms = beside(state, tick, knobs, cost, memory, plan)
    elif burst:
        take_back(state, knobs, memory)
    else:
        mode = offload(state, knobs, cost, memory, plan)
        if mode == 0 and knobs.sliced:
            slices(state, tick, knobs, cost, memory, plan)
    memory.last_mode[0] = mode
    release(memory, KIND_BURST, KIND_PROMPT)
    if not apply(knobs, memory):
        plan.info[RIDERS_MS] = 0.0  # prompts that came together are in the ticks
    elif plan.aside[0] < 0:
        ride_alone(state, tick, knobs, cost, memory, plan)
    if copies_ms > 0.0:
        burst, burst_ms = knobs.n_batch, max(burst_ms, copies_ms)
    plan.info[MODE] = mode
    if mode:
        mark(plan, FLAG_ASIDE)
    # the cells that are left bound what can be fed at all
    room = max(min(knobs.n_batch, tick.free_cells), 1)
    trim = background_tokens(tick, knobs, memory, traffic, room)
    if n > 0:
        entries = _interactive(
            state, tick, knobs, cost, memory, plan, mode, most, room, trim, waits, burst, burst_ms
        )  # fmt: skip
    elif found[KIND_PROMPT] > 0:
        entries = _interactive_prompts(state, tick, knobs, cost, memory, plan, most, room, trim)
    else:
        entries = _background(state, tick, knobs, cost, memory, plan, mode, room, trim)
    rows, prompt = _shape(state, plan, entries)
    if n > 0:
        plan.info[PASSENGERS] = rows + prompt - plan.info[INTERACTIVE_ROWS]
        if plan.info[RIDERS_MS] < 0.0:
            memory.riding[RIDERS_COUNT] = 0
        elif plan.info[INTERACTIVE_ROWS] > 0.0 and prompt == 0:
            memory.riding[RIDERS_COUNT] = rows - int(plan.info[INTERACTIVE_ROWS])
    else:
        memory.riding[RIDERS_COUNT] = 0
    past = 0.0
    for e in range(entries):
        past += plan.counts[e] * memory.past[memory.kind[plan.slots[e]]]
    predicted = predict(cost, mode, rows, prompt, past / max(rows + prompt, 1))
    plan.info[PREDICTED_MS] = predicted
    if rows == 0 and knobs.abortable and knobs.features & ABORT:
        least = 0.5 * knobs.tick_budget_ms
        if found[KIND_PROMPT]:
            least = 2.0 * knobs.tick_budget_ms  # interactive too: only a long one gives way
        if predicted > least:
            until = max(GIVEN_UP * predicted, predicted - knobs.tick_budget_ms)
            plan.info[ABORT_MS] = until
    return entries


@njit(**INNER)
def _shape(state, plan, entries):
    rows = prompt = 0
    for e in range(entries):
        s = plan.slots[e]
        if state.n_tokens[s] - state.n_past[s] == 1:
            rows += 1
        else:
            prompt += plan.counts[e]
    return rows, prompt


@njit(**INNER)
def _interactive(
    state, tick, knobs, cost, memory, plan, mode, most, room, trim, waits, burst, burst_ms
):  # fmt: skip
    """A tick in which interactive sessions decode."""
    found, since = memory.found, memory.since_ns
    within_cap, within_budget, credit = allowance(
        state, tick, knobs, cost, memory, plan, mode
    )
    n = found[KIND_DECODE]
    g = min(memory.group[mode, n], room)
    rows_ms = memory.alone_ms[mode, g]
    guarded = rows_ms > 0.0 and knobs.features & GUARD
    if not guarded:
        within_cap = within_budget = max(knobs.tick_budget_ms - rows_ms, 0.0)
        credit = 0.0
    else:
        # a session may have asked for a cap so wide that nobody else would get a turn
        within_cap = min(within_cap, knobs.tick_budget_ms)
        within_budget = min(within_budget, knobs.tick_budget_ms)
    if memory.holdoff[0] > 0:
        memory.holdoff[0] -= 1
        within_cap = within_budget = 0.0
    may_spend = guarded and knobs.features & ERROR_BUDGET and memory.holdoff[0] == 0
    flows = plan.info[FLOWS] > 0.0
    riders_ms, put_off = max(plan.info[RIDERS_MS], 0.0), plan.info[RIDERS_MS] < 0.0
    between = knobs.paced or knobs.sliced and mode == 0 and found[KIND_PROMPT] == 0
    together = flows or riders_ms > 0.0 or put_off
    sliced = between and (together or prompts_next(memory, waits))
    spent = 0.0
    if sliced:
        # decoders that are put off have the credit if prompts had their time since
        theirs = put_off and not (waits or flows) and since[SINCE_DECODE] < since[SINCE_BESIDE]
        spent = slice_between(
            tick, knobs, cost, memory, plan, waits, max(within_cap - riders_ms, 0.0),
            max(within_budget - riders_ms, 0.0), credit, may_spend and not theirs,
        )  # fmt: skip
        within_cap = max(within_cap - spent, 0.0)
        within_budget = max(within_budget - spent, 0.0)
    plan.info[INTERACTIVE_ROWS] = g
    kv = memory.past[KIND_DECODE]
    prompts = found[KIND_PROMPT]
    back, back_prompts = found[KIND_BACK_DECODE], found[KIND_BACK_PROMPT]
    entries = add_decoders(state, memory, plan, 0, KIND_DECODE, g)
    allowed = within_cap
    if flows:
        allowed += spent  # the chunk has it during the tick
    if flows or riders_ms > 0.0:
        within_cap = within_budget = riders_ms  # nothing else may make these ticks longer
        allowed = max(allowed, riders_ms)
    chunk = 0

    if prompts:
        want = min(waiting_tokens(state, memory, KIND_PROMPT), room - g)
        chunk, apart = _chunk(cost, mode, g, kv, rows_ms, within_cap, want)
        # a short one, or one that is late, need not be saved up for
        hurry = guarded and (want <= SHORT_PROMPT or _late(state, tick, memory))
        if chunk < want and (may_spend and credit >= 1.0 or hurry):
            more, more_apart = _chunk(cost, mode, g, kv, rows_ms, within_budget, want)
            if more > chunk:
                chunk, apart, allowed = more, more_apart, within_budget
                mark(plan, FLAG_SPENT)
        if chunk < min(want, burst) and burst_ms > allowed:
            more, more_apart = _chunk(cost, mode, g, kv, rows_ms, burst_ms, min(want, burst))
            if more > chunk:
                chunk, apart, allowed = more, more_apart, burst_ms
                mark(plan, FLAG_SPENT)
        patient = not knobs.features & AGEING
        patient = patient or _waited(tick, since, SINCE_INTERACTIVE) <= PROMPT_WAIT_MS
        if chunk == 0 and want > 0 and not patient:
            chunk, apart = min(MIN_CHUNK, want), False
            allowed = predict(cost, mode, g, chunk, kv) - rows_ms
        if chunk > 0:
            since[SINCE_INTERACTIVE] = tick.now_ns
            if apart:
                entries = 0
                plan.info[INTERACTIVE_ROWS] = 0
            entries = add_prompts(state, memory, plan, entries, KIND_PROMPT, chunk)
            if apart:
                plan.info[ALLOWED_MS] = allowed
                return entries
        else:
            mark(plan, FLAG_GUARDED + FLAG_SKIPPED_PREFILL)
    else:
        since[SINCE_INTERACTIVE] = tick.now_ns

    if back == 0:
        since[SINCE_DECODE] = tick.now_ns
    if back_prompts == 0:
        since[SINCE_PROMPT] = tick.now_ns
    if back + back_prompts == 0 or entries > g and allowed > within_cap:
        plan.info[ALLOWED_MS] = rows_ms + allowed
        return entries

    # background: who waited longer goes first; on the error budget if there is some to spend
    decoders_first = back > 0 and (back_prompts == 0 or since[SINCE_DECODE] <= since[SINCE_PROMPT])
    served = rides = False
    for attempt in range(3):
        if put_off:
            back = found[KIND_BACK_DECODE] if attempt != 1 else 0
        if attempt == 0 and put_off:
            # a pause of twice the baseline, since one that is shorter has another shape
            own_ms = predict(cost, mode, min(g, back), 0, kv)
            fits = own_ms <= within_budget + BOTH * rows_ms
            spent_already = int(plan.info[FLAGS]) & FLAG_SPENT
            if not (may_spend and credit >= 1.0 + RESERVED and fits) or spent_already or chunk:
                continue
            limit = -1.0
        elif attempt == 0:
            # a slice now and then: as many as the credit allows without the reserve
            if not may_spend or credit < 1.0 + RESERVED or chunk or within_budget <= within_cap:
                continue
            limit = within_budget
        elif attempt == 1:
            limit = within_cap
        else:
            oldest = SINCE_DECODE if decoders_first else SINCE_PROMPT
            waited_ms = _waited(tick, since, oldest)
            least = 1.0
            if put_off and waited_ms > 2.0 * BACK_WAIT_MS:
                least = 0.0  # cells that are copied take what there is of it
            if not knobs.features & AGEING or credit < least or chunk:
                continue
            if guarded and waited_ms < BACK_WAIT_MS:
                continue
            limit = -1.0
        apart = False
        k = more = 0
        for turn in range(2):
            if (turn == 0) == decoders_first:
                if put_off and back > 0 and more == 0:
                    k, apart = min(g, back, room), True  # no other shape: see `riders`
                elif back > 0 and more == 0:
                    k, apart = _rows(
                        cost, mode, g, chunk, kv, rows_ms, limit,
                        min(back, most - g), min(back, most), room - g - chunk,
                    )  # fmt: skip
            elif back_prompts > 0 and not apart:
                left = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), room - g - k - chunk)
                left = min(left, trim)
                if limit < 0.0:
                    # sizes take turns: what they cost is learned by it
                    size = MIN_CHUNK // 2 << (tick.number % SLICE_SIZES)
                    while size > 1 and predict(cost, mode, 0, size, kv) > DEAR * rows_ms:
                        size //= 2
                    more = min(size, left) if k == 0 else 0
                    apart = k == 0 and chunk == 0
                    # a token or two beside the rows may fit the cap: that is worth knowing, and
                    # finding out again, as long as it is not far from it
                    few = 2 if is_fresh(cost, mode, g, 1) else 1
                    near = predict(cost, mode, g, few, kv) <= HARD * rows_ms
                    look = not is_known(cost, mode, g, few)
                    look = look or near and not is_fresh(cost, mode, g, few)
                    if apart and g < room and look:
                        more, apart = min(few, left), False
                    elif apart and guarded:
                        # what keeps the pause within bounds, unless that is next to nothing
                        fits, alone = _chunk(cost, mode, g, kv, rows_ms, within_budget, left)
                        if fits >= MIN_CHUNK // 4:
                            more, apart = fits, alone
                elif k:
                    more = largest_chunk(cost, mode, g + k, kv, rows_ms + limit, chunk + left)
                    more = max(more - chunk, 0)
                else:
                    more, apart = _chunk(cost, mode, g, kv, rows_ms, limit, chunk + left)
                    if chunk:
                        apart = False
                        more = largest_chunk(cost, mode, g, kv, rows_ms + limit, chunk + left)
                    more = max(more - chunk, 0)
                    again = attempt == 1 and tick.number % LOOK_WIDER == 0 and may_spend
                    if again and limit > 0.0 and credit >= 1.0 and chunk == 0 and not apart:
                        more = min(_one_size_more(cost, mode, g, kv, rows_ms, more), left)
        if k or more:
            rides = True
            if apart:
                entries = 0
                plan.info[INTERACTIVE_ROWS] = 0
            if k:
                entries = add_decoders(state, memory, plan, entries, KIND_BACK_DECODE, k)
                since[SINCE_DECODE] = tick.now_ns
            if more:
                entries = add_prompts(state, memory, plan, entries, KIND_BACK_PROMPT, more)
                since[SINCE_PROMPT] = tick.now_ns
            if attempt != 1:
                mark(plan, FLAG_SPENT)
                allowed = max(limit, 0.0)
            served = more > 0 or back_prompts == 0
            break
    if between and found[KIND_ASIDE] and not (sliced or rides) and chunk == 0:
        # it was the decoders' turn, and none found room
        slice_between(
            tick, knobs, cost, memory, plan, waits, within_cap, within_budget, credit, False
        )
    if not served:
        mark(plan, FLAG_GUARDED)
        if back_prompts:
            mark(plan, FLAG_SKIPPED_PREFILL)
    plan.info[ALLOWED_MS] = rows_ms + allowed
    return entries


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
def _waited(tick, since, what):
    if since[what] == 0:
        since[what] = tick.now_ns
    return (tick.now_ns - since[what]) / 1e6


@njit(**INNER)
def _chunk(cost, mode, rows, kv, rows_ms, extra_ms, most):
    """Prompt tokens that fit ``extra_ms``: merged with the rows, or in a tick of their own.

    Returns (tokens, whether they should have the tick for themselves).
    """
    if most <= 0 or extra_ms <= 0.0:
        return 0, False
    merged = largest_chunk(cost, mode, rows, kv, rows_ms + extra_ms, most)
    alone = largest_chunk(cost, mode, 0, kv, extra_ms, most)
    if alone > merged:
        return alone, True
    return merged, False


@njit(**INNER)
def _one_size_more(cost, mode, rows, kv, rows_ms, tokens):
    """The next larger size of a chunk, if it was not seen for long; else ``tokens``.

    It makes a token late, as a slice does that has more tokens: no more often than needed.
    """
    at = prompt_class(tokens) + 1
    if at >= N_PROMPTS - 1:
        return tokens
    more = PROMPT_EDGES[at]
    near = predict(cost, mode, rows, more, kv) <= HARD * rows_ms
    return more if near and is_old(cost, mode, rows, more) else tokens


@njit(**INNER)
def _rows(cost, mode, g, chunk, kv, rows_ms, limit, merged, alone, room):
    """Background rows that fit ``limit`` ms: merged, or in a tick of their own.

    ``merged`` and ``alone``: how many there may be at most; ``limit`` of -1: one, anyhow.
    """
    for k in range(min(merged, room), 0, -1):
        ms = predict(cost, mode, g + k, chunk, kv)
        if 0.0 < ms <= rows_ms + limit:
            return k, False
    if chunk == 0 and alone > 0:
        for k in range(alone, 0, -1):
            ms = predict(cost, mode, k, 0, kv)
            if 0.0 < ms <= limit:
                return k, True
        if limit < 0.0:
            together = predict(cost, mode, g + 1, 0, kv) - rows_ms
            apart = merged <= 0 or room <= 0 or predict(cost, mode, 1, 0, kv) < together
            return 1, apart
    return 0, False


@njit(**INNER)
def _interactive_prompts(state, tick, knobs, cost, memory, plan, most, room, trim):
    """Nobody interactive decodes, and an interactive prompt waits: it goes first."""
    found, since, kv = memory.found, memory.since_ns, memory.past[KIND_PROMPT]
    since[SINCE_INTERACTIVE] = tick.now_ns
    # who waited too long rides whatever it costs, and finds room for its smallest slice
    ageing = knobs.features & AGEING
    back, back_prompts = min(found[KIND_BACK_DECODE], most), found[KIND_BACK_PROMPT]
    late_rows = ageing and back > 0 and _waited(tick, since, SINCE_DECODE) > BACK_WAIT_MS
    late_prompts = ageing and back_prompts > 0 and _waited(tick, since, SINCE_PROMPT) > BACK_WAIT_MS
    kept = (back if late_rows else 0) + (MIN_CHUNK if late_prompts else 0)
    want = min(waiting_tokens(state, memory, KIND_PROMPT), max(room - kept, 1))
    chunk = _blind_or_largest(cost, 0, kv, _long_budget(knobs, LONG_TICKS), want)
    entries = add_prompts(state, memory, plan, 0, KIND_PROMPT, chunk)
    room -= chunk
    limit = knobs.latency_cap * predict(cost, 0, 0, chunk, kv)
    back = min(back, room)
    if back > 0 and (late_rows or 0.0 < predict(cost, 0, back, chunk, kv) <= limit):
        entries = add_decoders(state, memory, plan, entries, KIND_BACK_DECODE, back)
        room -= back
        since[SINCE_DECODE] = tick.now_ns
    left = more = 0
    if back_prompts:
        left = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), trim, room)
    if left > 0 and found[KIND_BACK_DECODE] == 0:
        more = largest_chunk(cost, 0, 0, kv, limit, chunk + left) - chunk
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
def _long_budget(knobs, ticks):
    if knobs.abortable and knobs.features & ABORT:
        return ticks * knobs.tick_budget_ms
    return knobs.tick_budget_ms


@njit(**INNER)
def _blind_or_largest(cost, rows, kv, limit, most):
    if predict(cost, 0, rows, most, kv) <= 0.0:
        return min(BLIND_CHUNK, most)
    chunk = largest_chunk(cost, 0, rows, kv, limit, most)
    # a floor, so that a cost once learned too high is found out
    return max(chunk, min(MIN_CHUNK, most))


@njit(**INNER)
def _background(state, tick, knobs, cost, memory, plan, mode, room, trim):
    """Nobody interactive has work: throughput, under the tick budget."""
    found, since, kv = memory.found, memory.since_ns, memory.past[KIND_BACK_PROMPT]
    since[SINCE_INTERACTIVE] = tick.now_ns
    back, prompts = found[KIND_BACK_DECODE], found[KIND_BACK_PROMPT]
    g = min(memory.group[mode, back], room)
    want = 0
    if prompts:
        want = min(waiting_tokens(state, memory, KIND_BACK_PROMPT), room - g, trim)
    if want <= 0:
        since[SINCE_DECODE] = since[SINCE_PROMPT] = tick.now_ns
        return add_decoders(state, memory, plan, 0, KIND_BACK_DECODE, g)
    if g == 0:
        since[SINCE_DECODE] = since[SINCE_PROMPT] = tick.now_ns
        calm = _waited(tick, since, SINCE_ANYBODY) / knobs.tick_budget_ms
        ticks = min(max(calm, LONGER_TICKS), LONGEST_TICKS)
        chunk = _blind_or_largest(cost, 0, kv, _long_budget(knobs, ticks), want)
        if not (knobs.abortable and knobs.features & ABORT):
            # nobody can stop it: no longer than pays
            enough = efficient_chunk(cost, kv, knobs.tick_budget_ms, want, EFFICIENT)
            if enough:
                chunk = min(chunk, enough)
        return add_prompts(state, memory, plan, 0, KIND_BACK_PROMPT, chunk)
    # both: together where that is cheaper, else in turns
    rows_ms = memory.alone_ms[mode, g]
    budget = max(knobs.tick_budget_ms, 2.0 * rows_ms)
    chunk = _blind_or_largest(cost, g, kv, budget, want)
    apart = _blind_or_largest(cost, 0, kv, budget, want)
    together = predict(cost, mode, g, chunk, kv)
    separate = rows_ms + predict(cost, mode, 0, apart, kv)
    if together <= 0.0 or together * apart <= separate * chunk * 1.05:
        entries = add_decoders(state, memory, plan, 0, KIND_BACK_DECODE, g)
        since[SINCE_DECODE] = since[SINCE_PROMPT] = tick.now_ns
        return add_prompts(state, memory, plan, entries, KIND_BACK_PROMPT, chunk)
    if since[SINCE_DECODE] <= since[SINCE_PROMPT]:
        since[SINCE_DECODE] = tick.now_ns
        return add_decoders(state, memory, plan, 0, KIND_BACK_DECODE, g)
    since[SINCE_PROMPT] = tick.now_ns
    return add_prompts(state, memory, plan, 0, KIND_BACK_PROMPT, apart)


@njit(nogil=True, cache=True)
def observe(memory, info, wall_ms):
    """After a tick: one that overran what was allowed keeps passengers out for a while.

    ``info`` is what ``Plan.info`` was.  Without passengers it was noise, which they do not cause.
    """
    limit = OVERRUN * max(info[ALLOWED_MS], info[PREDICTED_MS])
    if info[PASSENGERS] > 0.0 and info[ALLOWED_MS] > 0.0 and wall_ms > limit:
        memory.holdoff[0] = HOLDOFF
