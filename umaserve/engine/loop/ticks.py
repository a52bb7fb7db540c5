"""Steady ticks: plan, fill, decode, sample, settle, publish, as often as nothing needs Python.

One compiled function runs without the GIL, calls libllama through addresses and touches no Python
object.  It comes back for what Python does: a message from the front, a finished request, cells
that run out, a failed decode.

Long: the phases of one tick, in their order.
"""

from __future__ import annotations

import numpy as np

from umaserve.engine.cells.accounting import count_used, held_by
from umaserve.engine.drafting.model import has_work, offer, read_on, speak
from umaserve.engine.drafting.phases import give, go_on_with, look, say_terms, settle_drafts
from umaserve.engine.drafting.records import NEVER
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import (
    fill,
    fill_up,
    keep_shapes,
    note_fed,
    settle,
    stop_at_checkpoints,
)
from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_ptr,
    call_i64_ptr_i32,
    call_i64_ptr_i32_i32,
    now_ns,
    readable,
    stores_first,
    wake,
)
from umaserve.engine.native.status import DECODED, GIVEN_UP, NO_LOGITS
from umaserve.engine.prefill.chunk_stack import run_parts, waits
from umaserve.engine.samplers.masks import ask_ahead, ask_for_masks, await_masks
from umaserve.engine.samplers.rows import call_workers, sample_all, slow_last
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER, PHASE
from umaserve.policy.base import (
    BANDWIDTH,
    Tick,
)
from umaserve.policy.bytes import bandwidth
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import settle_credit
from umaserve.sampling.params import SLOW
from umaserve.sampling.sampler import NO_CHOICE, NO_NUMBERS
from umaserve.wire import table as t

from .account import account, is_for_pace
from .beside import (
    note_next_part,
    note_shape,
    order_beside,
    order_thread,
)
from .records import (
    ABORTED,
    ATTENTION,
    ENDED,
    ENOUGH,
    FAILED,
    GOES_ON,
    NO_ROOM,
    NOT_NUMBERS,
    NOTHING,
    RESUME,
    UNDER_WAY,
    WAITED,
)

DONE = t.DONE
BUSY_DECODE, BUSY_IDLE = t.BUSY_DECODE, t.BUSY_IDLE
LEAST_SLICE_MS = 0.02  # less is not worth waking anybody for


@njit(nogil=True, cache=True, _nrt=True)
def run_ticks(most, tick, given, loop):
    """Run up to ``most`` ticks; returns (why it came back, number of the last tick).

    ``given``: entries of a plan that is made already, for the first tick.  It may be -1: the
    compiled policy plans.  It may be RESUME: the first tick was submitted before UNDER_WAY was
    returned.  Where the backend overlaps, the tokens of one tick are published while the next one
    computes.  Elsewhere before it is submitted, since submitting waits for the result.
    """
    flight = loop.work.flight
    flight.unpublished = flight.flying = 0
    out = loop.work.out
    out.ended = out.status = out.entries = out.without_numbers = out.without_choice = 0
    for turn in range(most):
        resumed = given == RESUME and turn == 0
        if not resumed:
            why = plan_next(loop, tick, given if turn == 0 else -1)
            if why == WAITED:
                continue
            if why != GOES_ON:
                return why, tick
            slice_prompts(loop)
            draft_tokens(loop)
            ask_draft_model(loop)
            fill_batch(loop)
        why = decode(loop, resumed)
        if why != GOES_ON:
            return why, tick
        tick += 1
        count = sort_rows(loop)
        while True:
            sample(loop, count)
            settle_rows(loop, count, tick)
            verify(loop, count)
            count = flight.outputs_sent - flight.settled
            if count == 0:
                break
            tell(loop)
        end_drafts(loop)
        why = end_tick(loop, turn + 1 < most)
        if why != GOES_ON:
            return why, tick
    return ENOUGH, tick


@njit(**PHASE)
def plan_next(loop, tick, given):
    """Plan the next tick, and say what is computed beside it.

    Returns GOES_ON where the tick can run, WAITED after a wait for something that can, or why
    Python is needed.
    """
    knobs, orders, plan, work = loop.knobs, loop.orders, loop.plan, loop.work
    header, flight, native, state = loop.columns.header, work.flight, loop.native, loop.state
    flight.parity = 1 - flight.parity
    facts, fixed = work.facts[flight.parity], loop.fixed
    started = now_ns(native)
    used = count_used(state.state, state.n_past, loop.columns.more_cells)
    facts.began_ns, facts.cells_used = started, used
    if given >= 0:
        entries = given
    else:
        note_next_part(knobs, orders, loop.cost, loop.memory, plan)
        left = _bytes_left(flight, loop.budget, knobs, started)
        view = Tick(tick, started, fixed.n_ctx - used, used, left)
        entries = plan_tick(state, view, knobs, loop.cost, loop.memory, loop.traffic, plan)
    flight.entries = entries
    stop_at_checkpoints(entries, plan, loop.columns)
    apart = keep_shapes(entries, plan, loop.columns)
    flight.context = flight.apart if apart else native.context
    order_beside(knobs, native, state, orders, plan, started)
    need = 0
    for e in range(entries):
        need += plan.counts[e]
    if entries and used + need <= fixed.n_ctx:
        return GOES_ON
    publish_last(loop)
    if entries:
        work.out.entries = entries
        return NO_ROOM
    if plan.info.wait_ms > 0.0:
        # the budget of bytes is used up, or all there is runs beside the ticks
        header.heartbeat_ns = started
        if orders.running[0] >= 0:
            header.work_since_ns = started  # not idle
        return ATTENTION if readable(native, int(plan.info.wait_ms)) else WAITED
    return NOTHING


@njit(**PHASE)
def slice_prompts(loop):
    """Leave the plan's slice to a prompt that is computed beside the ticks."""
    orders, native, work = loop.orders, loop.native, loop.work
    facts, slice_ms = work.facts[work.flight.parity], loop.plan.info.slice_ms
    facts.slice_ns = 0
    if slice_ms <= LEAST_SLICE_MS or not waits(orders.gate):
        return
    publish_last(loop)  # nobody's token waits for a prompt
    header, started = loop.columns.header, facts.began_ns
    until = started + int(slice_ms * 1e6)
    place_threads(loop.places, _threads(loop.fixed, 0, 2))
    # it can hang as a tick can
    header.tick_start_ns = header.heartbeat_ns = started
    header.busy = BUSY_DECODE
    ended = run_parts(orders.gate, native, until, orders.wake_fd)
    facts.began_ns, facts.slice_ns = ended, ended - started
    if header.work_since_ns:
        header.work_since_ns += ended - started  # no overhead


@njit(**PHASE)
def draft_tokens(loop):
    """Draft tokens for rows of the plan, as many as pay in this tick."""
    plan, columns, drafts, work = loop.plan, loop.columns, loop.drafts, loop.work
    entries, facts = work.flight.entries, work.facts[work.flight.parity]
    facts.may_draft = 0
    if loop.drafts.marks.way == NEVER:
        return
    attended = look(entries, plan, columns, drafts)
    if drafts.marks.rows == 0:
        return
    used, terms = facts.cells_used, drafts.wanted.terms
    say_terms(
        entries, plan, loop.state, loop.knobs, loop.memory, drafts, loop.fixed.n_ctx - used
    )
    terms.past = used if loop.knobs.wide_reads else attended / drafts.marks.rows
    facts.may_draft = terms.room > 0
    speaker = loop.speaker
    if speaker.context and not speaker.reading.failed and terms.room > 0:
        offer(speaker, columns, loop.state, drafts, loop.cost)
    give(drafts, loop.cost, loop.state.lane)
    if drafts.marks.given:
        plan.info.predicted_ms = drafts.wanted.kept.price_ms


@njit(**PHASE)
def ask_draft_model(loop):
    """Have a draft model say what it has been given to draft, or read a text that is new to it."""
    speaker, drafts, native, work = loop.speaker, loop.drafts, loop.native, loop.work
    facts = work.facts[work.flight.parity]
    facts.speech_ns = 0
    if drafts.marks.way == NEVER or speaker.context == 0:
        return
    if speaker.reading.failed or drafts.marks.rows == 0 or drafts.wanted.terms.room == 0:
        return
    if not has_work(speaker, drafts.wanted):
        return
    publish_last(loop)  # nobody's token waits for the next ones
    header, started = loop.columns.header, facts.began_ns
    place_threads(loop.places, _threads(loop.fixed, 0, 2))
    # it can hang as a tick can
    header.tick_start_ns = header.heartbeat_ns = started
    header.busy = BUSY_DECODE
    speak(speaker, loop.columns, drafts, native)
    read_on(speaker, loop.columns, drafts.wanted, native)
    ended = now_ns(native)
    facts.began_ns, facts.speech_ns = ended, ended - started
    if header.work_since_ns:
        header.work_since_ns += ended - started  # no overhead


@njit(**PHASE)
def fill_batch(loop):
    """Write the plan into the batch, and what is known of the tick into its facts."""
    knobs, orders, plan, work = loop.knobs, loop.orders, loop.plan, loop.work
    header, fixed, flight, batch = loop.columns.header, loop.fixed, work.flight, loop.batch
    facts, entries = work.facts[flight.parity], flight.entries
    started = facts.began_ns
    _set_mode(fixed, loop.native, flight, plan.info.mode)
    order_thread(knobs, loop.native, loop.state, orders, plan, started)
    work.info[flight.parity] = plan.info
    in_batch, outputs, rows = fill(entries, plan, loop.columns, batch, loop.drafts)
    batch.n_tokens[0] = in_batch
    apart = flight.context != loop.native.context
    if apart:
        batch.seq[:in_batch] = 0
    elif entries == 1 and outputs == 1 and facts.cells_used == 0:
        batch.n_tokens[0] = fill_up(
            in_batch, flight.width, fixed.spare, batch.token, batch.pos, batch.seq, batch.logits
        )
    if loop.drafts.marks.given:
        wanted = loop.drafts.wanted
        ask_ahead(
            loop.drafts.marks.rows, wanted.rows, wanted.counts, loop.drafts.tokens,
            loop.columns.n_tokens, loop.rows.settings.whole, loop.ahead, loop.native,
        )  # fmt: skip
    read, attended = _reads(entries, plan, loop.columns, loop.drafts)
    header.tick_start_ns = header.heartbeat_ns = started
    header.busy = BUSY_DECODE
    facts.tokens, facts.outputs, facts.decoding_rows = in_batch, outputs, rows
    facts.drafted, facts.taken, facts.rounds_ns = loop.drafts.marks.given, 0, 0
    facts.cells_read, facts.attended, facts.told_ns = read, attended, 0
    flight.outputs_sent = outputs
    note_shape(flight, knobs, loop.cost, loop.memory, rows, facts, plan.info)
    if apart:
        facts.disturbed = 1


@njit(**PHASE)
def decode(loop, resumed):
    """Have the batch computed; ``resumed``: it was submitted before.

    Returns GOES_ON once its logits are there, UNDER_WAY where Python has its turn meanwhile, or
    what went wrong.
    """
    work, native, status = loop.work, loop.native, DECODED
    flight, header, abort = work.flight, loop.columns.header, loop.columns.abort
    if not resumed:
        status = submit(loop)
        header.overlapped += flight.unpublished
        publish_last(loop)
        if flight.flying and status == DECODED:
            return UNDER_WAY
    facts = work.facts[flight.parity]
    if status == DECODED:
        call_workers(loop.pool, flight.outputs_sent)
        call_i64_ptr(native.synchronize, flight.context)
    facts.decoded_ns = now_ns(native)
    armed = abort.armed
    abort.armed = 0
    header.busy = BUSY_IDLE
    header.tick_start_ns = 0
    if status == DECODED and flight.outputs_sent:
        flight.logits = call_i64_ptr_i32(native.logits_ith, flight.context, loop.batch.out_row[0])
        if flight.logits == 0:
            status = NO_LOGITS
    if status == DECODED:
        return GOES_ON
    work.out.status = status
    work.out.entries = flight.entries
    return ABORTED if status == GIVEN_UP and armed else FAILED


@njit(**PHASE)
def submit(loop):
    """Place threads for the batch and hand it to libllama; returns its status."""
    work, native = loop.work, loop.native
    flight, abort = work.flight, loop.columns.abort
    facts = work.facts[flight.parity]
    n_threads = _threads(loop.fixed, flight.mode, facts.tokens)
    place_threads(loop.places, n_threads)
    loop.pool.team.threads = n_threads
    sent = now_ns(native)
    facts.submitted_ns = sent
    abort_ms = work.info[flight.parity].abort_ms
    if abort_ms > 0.0:
        abort.until_ns = sent + int(abort_ms * 1e6)
        abort.armed = 1
    status = call_i32_ptr_ptr(native.decode, flight.context, native.batch)
    facts.returned_ns = now_ns(native)
    return status


@njit(**PHASE)
def sort_rows(loop):
    """Say where each row's logits lie; returns how many rows are sampled first.

    Rows that take long go last: the others' tokens are with the front by then.
    """
    work, batch, row_bytes = loop.work, loop.batch, 4 * loop.fixed.n_vocab
    outputs, drafts, at = work.flight.outputs_sent, loop.drafts, 0
    work.flight.settled = 0
    # one behind the other, in the order of the batch (llama_get_logits); asking for each takes
    # 2 us on an accelerator
    for i in range(outputs):
        slot = batch.out_slot[i]
        batch.out_row[i] = drafts.output[slot] = at
        at += 1 + drafts.wanted.counts[slot]
    quick = slow_last(
        outputs, batch.out_slot, batch.out_row, loop.rows.settings.whole, work.ended, work.sampled
    )
    for i in range(outputs):
        work.addresses[i] = work.flight.logits + row_bytes * batch.out_row[i]
    return quick


@njit(**PHASE)
def sample(loop, count):
    """Choose tokens for the next ``count`` rows."""
    work, flight = loop.work, loop.work.flight
    slots = loop.batch.out_slot[flight.settled :]
    await_masks(
        count, loop.state.state, slots, loop.columns.n_tokens, loop.rows.settings.whole,
        loop.drafts.right, loop.ahead, loop.native, loop.pool,
    )  # fmt: skip
    sample_all(loop.pool, flight.settled, count, loop.rows, loop.scratch)
    facts, now = work.facts[flight.parity], now_ns(loop.native)
    if loop.drafts.marks.taken:
        facts.rounds_ns += now - facts.sampled_ns
    facts.sampled_ns = now


@njit(**PHASE)
def settle_rows(loop, count, tick):
    """Write these rows' tokens into the table; the first time, what the tick has fed too."""
    columns, work, flight = loop.columns, loop.work, loop.work.flight
    first, parity = flight.settled, flight.parity
    slots, at_ns = loop.batch.out_slot[first:], work.facts[parity].sampled_ns
    info = work.info[parity]
    may_be_late, baseline_ms = is_for_pace(work.facts[parity]), info.baseline_ms
    _credits(columns, loop.state, loop.knobs, baseline_ms, slots, count, at_ns, may_be_late)
    if first == 0:
        note_fed(flight.entries, loop.plan, columns, loop.state.served, tick)
    work.out.ended = settle(
        columns, work, slots, work.sampled[first:], count, at_ns, work.out.ended,
    )  # fmt: skip
    ask_for_masks(count, slots, loop.rows.settings.whole, loop.native)
    flight.settled += count


@njit(**PHASE)
def verify(loop, count):
    """Give rows of the last ``count`` another round that got the next of their drafted tokens."""
    if loop.drafts.marks.given:
        first = loop.work.flight.settled - count
        row_bytes = 4 * loop.fixed.n_vocab
        go_on_with(loop.columns, loop.batch, loop.work, loop.drafts, first, count, row_bytes)


@njit(**PHASE)
def end_drafts(loop):
    """Free what drafted tokens have of the cells, but for those that rows got."""
    flight, drafts = loop.work.flight, loop.drafts
    if drafts.marks.way == NEVER:
        return
    facts = loop.work.facts[flight.parity]
    facts.outputs, facts.taken = flight.outputs_sent, drafts.marks.taken
    prompt = facts.tokens - drafts.marks.rows - facts.drafted
    wall_ms = (facts.sampled_ns - facts.began_ns) / 1e6
    settle_drafts(
        loop.columns, drafts, loop.native, prompt, wall_ms, facts.rounds_ns / 1e6,
        facts.speech_ns / 1e6,
    )  # fmt: skip


@njit(**PHASE)
def end_tick(loop, more):
    """Publish the tick, or leave that to the next one, whose decode it need not wait for.

    ``more``: whether another tick may follow.  Returns GOES_ON or why Python is needed.
    """
    columns, work, native = loop.columns, loop.work, loop.native
    flight, out, outputs = work.flight, work.out, work.flight.outputs_sent
    slots = loop.batch.out_slot
    out.without_choice = _rows_with(NO_CHOICE, outputs, slots, work.sampled, work.stuck)
    out.without_numbers = _rows_with(NO_NUMBERS, outputs, slots, work.sampled, slots)
    if out.ended or out.without_numbers or out.without_choice:
        # who hears of an end finds everything counted
        account(loop, flight.parity)
        _end_rows(columns, loop.state, work.ended, out.ended)
        wake(native)
        return NOT_NUMBERS if out.without_numbers else ENDED
    attention, overlap = readable(native), loop.knobs.overlaps
    lands = flight.must_stop != 0
    # nobody interactive waits for what Python is to do: the next decode is submitted before
    flies = overlap and attention and not lands
    flight.flying = flies and not _is_urgent(columns.abort, flight)
    if (flight.flying or overlap and not attention and not lands) and more:
        flight.unpublished = 1
        return GOES_ON
    if outputs:
        wake(native)
    account(loop, flight.parity)
    return ATTENTION if attention or lands else GOES_ON


@njit(**PHASE)
def tell(loop):
    """Wake the front for the tokens that are there, if the next rows take long."""
    flight = loop.work.flight
    if not loop.rows.settings.whole[loop.batch.out_slot[flight.settled], SLOW]:
        return  # more of the tokens that were drafted
    wake(loop.native)
    loop.work.facts[loop.work.flight.parity].told_ns = now_ns(loop.native)


@njit(**INNER, _nrt=True)
def publish_last(loop):
    """Wake the front for the tokens of the tick before, if they wait for that, and account it."""
    if loop.work.flight.unpublished:
        wake(loop.native)
        account(loop, 1 - loop.work.flight.parity)
        loop.work.flight.unpublished = 0


@njit(**INNER)
def _reads(entries, plan, columns, drafts):
    """Mark the plan's rows; returns KV cells that they read, and those times their tokens."""
    read = attended = 0
    for e in range(entries):
        s = plan.slots[e]
        columns.in_tick[s] = 1
        read += columns.n_past[s] + plan.counts[e]
        attended += columns.n_past[s] * (plan.counts[e] + drafts.wanted.counts[s])
    return read, attended


@njit(**INNER)
def _end_rows(columns, state, ended, n):
    """Mark rows as DONE.  What their cells hold may be saved before these are free."""
    used = count_used(state.state, state.n_past, columns.more_cells)
    for i in range(n):
        used -= held_by(columns.n_past, columns.more_cells, ended[i])
    columns.header.cells_used = used
    stores_first()  # a row that is DONE has all its tokens, and says why it ended
    for i in range(n):
        state.state[ended[i]] = DONE


@njit(**INNER)
def _rows_with(outcome, outputs, slots, sampled, found):
    """How many rows have ``outcome`` instead of a token; ``found`` gets them.

    ``found`` may be ``slots``, which has these rows in front then.
    """
    n = 0
    for i in range(outputs):
        if sampled[i] == outcome:
            found[n] = slots[i]
            n += 1
    return n


@njit(**INNER)
def _bytes_left(flight, budget, knobs, now):
    """Bytes that background work may move now: a bucket of one tick budget, filled by time."""
    bps = bandwidth.budget_bps(budget)
    if bps <= 0.0 or not knobs.features & BANDWIDTH:
        return np.inf
    full = bandwidth.budget_bytes(bps, knobs.tick_budget_ms)
    if flight.bucket_ns == 0:
        flight.bytes_left = full
    else:
        grown = flight.bytes_left + bps * (now - flight.bucket_ns) * 1e-9
        flight.bytes_left = min(grown, full)
    flight.bucket_ns = now
    return flight.bytes_left


@njit(**INNER)
def _is_urgent(abort, flight):
    """Whether somebody interactive is on the way in."""
    return flight.awaited != 0 or abort.urgent != abort.urgent_seen


@njit(**INNER)
def _set_mode(fixed, native, flight, mode):
    """Leave cores to a prompt beside the ticks, or take them back."""
    if mode == flight.mode:
        return
    flight.mode = mode
    one, many = _threads(fixed, mode, 1), _threads(fixed, mode, 2)
    call_i64_ptr_i32_i32(native.set_threads, native.context, one, many)


@njit(**INNER)
def _threads(fixed, mode, tokens):
    """Threads of a tick of so many tokens."""
    if mode:
        left = fixed.threads_left
        return min(fixed.threads, left) if tokens == 1 else left
    return fixed.threads if tokens == 1 else fixed.threads_batch


@njit(**INNER)
def _credits(columns, state, knobs, baseline_ms, slots, count, now, may_be_late):
    """Error budget of the interactive sessions that get a token now; runs before ``settle``.

    ``may_be_late``: others may have made them wait (`is_for_pace`).
    """
    if baseline_ms <= 0.0:
        return
    t_last_ns, lane, cap, credit = columns.t_last_ns, state.lane, state.cap, state.credit
    for i in range(count):
        s = slots[i]
        if lane[s] != 0 or t_last_ns[s] == 0:
            continue
        gap_ms = (now - t_last_ns[s]) / 1e6 if may_be_late else 0.0
        own_ms = state.rounds[s] * baseline_ms
        credit[s], slow = settle_credit(
            credit[s], cap[s], knobs.latency_cap, own_ms, gap_ms
        )
        if slow:
            columns.header.slow_tokens += 1
