"""Phases of a tick before its decode: plan, slices of prompts, drafts, the batch."""

from __future__ import annotations

import numpy as np

from umaserve.engine.cells.accounting import count_used
from umaserve.engine.drafting.model import has_work, offer, read_on, speak
from umaserve.engine.drafting.phases import give, look, say_terms
from umaserve.engine.drafting.records import NEVER
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import fill, fill_up, keep_shapes, stop_at_checkpoints
from umaserve.engine.native.calls import call_i64_ptr_i32_i32, now_ns, readable
from umaserve.engine.prefill.chunk_stack import run_parts, waits
from umaserve.jit.compiled import INNER, PHASE, njit
from umaserve.policy.base import BANDWIDTH, Tick
from umaserve.policy.bytes import bandwidth
from umaserve.policy.cost.prediction import is_filled
from umaserve.policy.guarded import plan_tick
from umaserve.wire import table as t

from .account import publish_last
from .beside import note_next_part, note_shape, order_beside, order_thread
from .records import ATTENTION, GOES_ON, NO_ROOM, NOTHING, WAITED

BUSY_DECODE = t.BUSY_DECODE
LEAST_SLICE_MS = 0.02  # less is not worth waking anybody for


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
    place_threads(loop.places, threads_of(loop.fixed, 0, 2))
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
    place_threads(loop.places, threads_of(loop.fixed, 0, 2))
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
    read, attended = _reads(entries, plan, loop.columns, loop.drafts)
    facts.filled = 0
    if entries == 1 and not apart:
        width = flight.width if outputs == 1 and facts.cells_used == 0 else 0
        free, past = fixed.n_ctx - facts.cells_used, attended / in_batch
        if rows == 0 and _fills(loop.cost, flight.mode, free, in_batch, past):
            width = int(loop.cost.filled[0])
            facts.filled = width - in_batch
        batch.n_tokens[0] = fill_up(
            in_batch, width, fixed.spare, batch.token, batch.pos, batch.seq, batch.logits
        )
    header.tick_start_ns = header.heartbeat_ns = started
    header.busy = BUSY_DECODE
    facts.tokens, facts.outputs, facts.decoding_rows = in_batch, outputs, rows
    facts.drafted, facts.taken, facts.rounds_ns = loop.drafts.marks.given, 0, 0
    facts.cells_read, facts.attended = read, attended
    flight.outputs_sent = outputs
    note_shape(flight, knobs, loop.cost, loop.memory, rows, facts, plan.info)
    if apart:
        facts.disturbed = 1


@njit(**INNER)
def _fills(cost, mode, free, prompt, past):
    """Whether tokens of nobody's behind a prompt's shorten the tick, and have ``free`` cells."""
    return free >= cost.filled[0] and is_filled(cost, mode, prompt, past)


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
def _set_mode(fixed, native, flight, mode):
    """Leave cores to a prompt beside the ticks, or take them back."""
    if mode == flight.mode:
        return
    flight.mode = mode
    one, many = threads_of(fixed, mode, 1), threads_of(fixed, mode, 2)
    call_i64_ptr_i32_i32(native.set_threads, native.context, one, many)


@njit(**INNER)
def threads_of(fixed, mode, tokens):
    """Threads of a tick of so many tokens."""
    if mode:
        left = fixed.threads_left
        return min(fixed.threads, left) if tokens == 1 else left
    return fixed.threads if tokens == 1 else fixed.threads_batch
