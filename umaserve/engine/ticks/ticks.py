"""Steady ticks: plan, fill, decode, sample, settle, publish, as often as nothing needs Python.

One compiled function runs without the GIL, calls libllama through addresses and touches no Python
object.  It comes back for what Python does: a message from the front, a finished request, cells
that run out, a failed decode.  Phases up to the batch are in `planning`.
"""

from __future__ import annotations

from umaserve.engine.cells.accounting import count_used, held_by
from umaserve.engine.drafting.phases import go_on_with
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import note_fed, settle
from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_ptr,
    call_i64_ptr_i32,
    cut_end,
    now_ns,
    readable,
    stores_first,
    wake,
)
from umaserve.engine.native.status import DECODED, GIVEN_UP, NO_LOGITS
from umaserve.engine.samplers.masks import ask_for_masks, await_masks
from umaserve.engine.samplers.rows import call_workers, sample_all
from umaserve.jit.compiled import INNER, PHASE, njit
from umaserve.sampling.sampler import NO_CHOICE, NO_NUMBERS
from umaserve.wire import table as t

from .account import account, is_for_pace, publish_last, settle_credits
from .draft_ends import end_drafts, hear
from .planning import (
    ask_draft_model,
    draft_tokens,
    fill_batch,
    plan_next,
    slice_prompts,
    threads_of,
)
from .records import (
    ABORTED,
    ATTENTION,
    ENDED,
    ENOUGH,
    FAILED,
    GOES_ON,
    NOT_NUMBERS,
    RESUME,
    UNDER_WAY,
    WAITED,
)

DONE, BUSY_IDLE = t.DONE, t.BUSY_IDLE


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
        count = find_rows(loop)
        while True:
            sample(loop, count)
            settle_rows(loop, count, tick)
            verify(loop, count)
            count = flight.outputs_sent - flight.settled
            if count == 0:
                break
        hear(loop)
        end_drafts(loop)
        why = end_tick(loop, turn + 1 < most)
        if why != GOES_ON:
            return why, tick
    return ENOUGH, tick


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
    if facts.filled:
        cut_end(native, loop.fixed.spare, 0)
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
    n_threads = threads_of(loop.fixed, flight.mode, facts.tokens)
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
def find_rows(loop):
    """Say where each row's logits lie; returns how many rows have some."""
    work, row_bytes = loop.work, 4 * loop.fixed.n_vocab
    outputs, drafts, at = work.flight.outputs_sent, loop.drafts, 0
    work.flight.settled = 0
    # one behind the other, in the order of the batch (llama_get_logits); asking for each takes
    # 2 us on an accelerator
    for i in range(outputs):
        slot = loop.batch.out_slot[i]
        drafts.output[slot] = at
        work.addresses[i] = work.flight.logits + row_bytes * at
        at += 1 + drafts.wanted.counts[slot]
    return outputs


@njit(**PHASE)
def sample(loop, count):
    """Choose tokens for the next ``count`` rows."""
    work, flight = loop.work, loop.work.flight
    slots = loop.batch.out_slot[flight.settled : flight.settled + count]
    await_masks(
        slots, loop.state.state, loop.columns.n_tokens, loop.rows.settings.whole, loop.native,
        loop.pool,
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
    settle_credits(columns, loop.state, loop.knobs, baseline_ms, slots, count, at_ns, may_be_late)
    if first == 0:
        note_fed(flight.entries, loop.plan, columns, loop.state.served, tick)
    work.out.ended = settle(
        columns, work, slots, work.sampled[first:], count, at_ns, work.out.ended,
    )  # fmt: skip
    ask_for_masks(slots[:count], loop.rows.settings.whole, loop.native)
    flight.settled += count


@njit(**PHASE)
def verify(loop, count):
    """Give rows of the last ``count`` another round that got the next of their drafted tokens."""
    if loop.drafts.marks.given:
        first = loop.work.flight.settled - count
        row_bytes = 4 * loop.fixed.n_vocab
        go_on_with(loop.columns, loop.batch, loop.work, loop.drafts, first, count, row_bytes)


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
def _is_urgent(abort, flight):
    """Whether somebody interactive is on the way in."""
    return flight.awaited != 0 or abort.urgent != abort.urgent_seen
