"""Steady ticks: plan, fill, decode, sample, settle, publish, as often as nothing needs Python.

One compiled function runs without the GIL, calls libllama through addresses and touches no Python
object.  It comes back for what Python does: a message from the front, a finished request, cells
that run out, a failed decode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.engine.cells.cell_map import TOGETHER, USED, VALID, make_room, take_cells
from umaserve.engine.cells.held_span import hold_span
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import fill, fill_up, settle
from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_ptr,
    call_i64_ptr_i32,
    call_i64_ptr_i32_i32,
    loads_first,
    now_ns,
    readable,
    stores_first,
    wake,
)
from umaserve.engine.prefill.chunk_stack import (
    GIVEN_UP,
    choose_owner,
    next_part_ms,
    next_part_tokens,
    run_parts,
    waits,
)
from umaserve.engine.prefill.gate import (
    LONGEST,
    OPEN,
    PARKED,
    SIZE,
    UNTIL,
    WHOLE,
    let_through,
    set_gate,
)
from umaserve.engine.prefill.orders import give_orders, grant_chunk
from umaserve.engine.samplers.rows import call_workers, sample_all, slow_last
from umaserve.engine.samplers.team_rows import SIZE as TEAM_SIZE
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.accelerator.beside import may_land
from umaserve.policy.base import (
    ABORT_MS,
    ALL_THE_TIME,
    BACK_WAIT_MS,
    BANDWIDTH,
    BASELINE_MS,
    CHUNK_BESIDE,
    FLOWS,
    KIND_DECODE,
    MODE,
    PASSENGERS,
    PREDICTED_MS,
    REDOES,
    RIDERS_MS,
    SLICE_MS,
    WAIT_MS,
    Tick,
)
from umaserve.policy.bytes import bandwidth
from umaserve.policy.cost.model import FLOW_MS, is_known
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import earned, settle_credit
from umaserve.policy.processor.slices import learn_longest
from umaserve.sampling.sampler import NO_NUMBERS
from umaserve.wire import table as t

from .account import (
    ATTENDED,
    BEGAN,
    BESIDE,
    CHANGED,
    DECODED,
    DECODING,
    KV_READ,
    KV_USED,
    OUTPUTS,
    SAMPLED,
    SLICE,
    SUBMITTED,
    THROUGH,
    TOKENS,
    TOLD,
    account,
)

# ticks after a landing, or a change of shape: a captured graph has to be made again
UNLIKE = 2

# why the loop came back
NOTHING = 0  # no row can run
ATTENTION = 1  # the front, the tokeniser or the prefill worker has something
ENDED = 2  # rows ended: ``out[OUT_ENDED]`` of them
FAILED = 3  # ``out[OUT_STATUS]``: what llama_decode says, or NO_LOGITS
NO_ROOM = 4  # the plan's tokens do not fit the free KV cells
ENOUGH = 5  # as many ticks as were asked for
ABORTED = 6  # the tick was given up for an interactive request
UNDER_WAY = 7  # as ATTENTION, with a decode submitted meanwhile: to be called again with RESUME
NOT_NUMBERS = 8  # as ENDED, and ``out[OUT_WITHOUT]`` rows, in ``batch.out_slot``, have no numbers
RESUME = -2  # instead of a plan

NO_LOGITS = 1 << 20  # instead of a status: llama_get_logits_ith has none of a decoded batch

OUT_ENDED = 0
OUT_STATUS = 1
OUT_ENTRIES = 2
OUT_WITHOUT = 3

RUNNING, DONE = t.RUNNING, t.DONE
BUSY_DECODE, BUSY_IDLE = t.BUSY_DECODE, t.BUSY_IDLE

# words of ``Work.flight``: the tick that is under way, and whether ATTENTION may not wait for one
PARITY, ENTRIES, OUTPUTS_SENT, TURNS, USUAL, MUST_STOP = range(6)
FLIGHT = 6
LEAST_SLICE_MS = 0.02  # less is not worth waking anybody for


class Columns(NamedTuple):
    """The session table, in the form that compiled code takes (borrowed)."""

    header: np.ndarray
    ticks: np.ndarray
    reason: np.ndarray
    seq: np.ndarray
    n_prompt: np.ndarray
    n_tokens: np.ndarray
    n_past: np.ndarray
    max_tokens: np.ndarray
    in_tick: np.ndarray
    isolate: np.ndarray
    t_first_ns: np.ndarray
    t_last_ns: np.ndarray
    tokens: np.ndarray
    token_ns: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def of(cls, table: t.SessionTable) -> Columns:
        return cls(*(getattr(table, name) for name in cls._fields))


class Fixed(NamedTuple):
    """What does not change while a model is loaded."""

    n_vocab: int
    n_ctx: int
    budget_ms: float
    overlap: bool  # the backend returns before the work is done
    threads: int  # of single-row ticks
    threads_batch: int  # of others
    threads_beside: int  # of all, while a prompt is computed aside
    wide_reads: bool  # attention reads the whole span of KV cells, not a sequence's own
    spare: int  # a KV sequence that is nobody's


class Work(NamedTuple):
    """Arrays that one tick hands to the next step, allocated once.

    ``addresses`` int64, ``sampled``, ``ended`` int32: [n_slots]; ``served`` int64[n_slots] and
    ``resumed_at`` int32[n_slots] live as long as the rows; ``eog_ids`` int32, ``is_eog``
    uint8[n_vocab]; ``out`` int64[4]: see OUT_*.  ``facts`` int64[2, FACTS] and ``info``
    float64[2, INFO_WORDS] keep a tick and the one before apart; ``mode`` int64[1] is what the
    threads are set for; ``aside`` int32[n_slots]: 1 = that prompt is computed aside,
    -1 = it cannot be; ``bytes_left`` float64[2]: the bucket of the bandwidth budget, and ns of its
    last filling; ``unlike`` int64[1]: so many ticks to come say nothing about others; ``shape``
    int64[1]: decoding rows of the tick before, -1 = it had prompt tokens too;
    ``awaited`` int64[1]: whether an interactive request is being tokenised; ``width`` int64[1]:
    tokens that a prompt alone is filled up to in the first tick, see `ready_graph`; 0 = none;
    ``flight`` int64[FLIGHT].
    """

    addresses: np.ndarray
    sampled: np.ndarray
    ended: np.ndarray
    served: np.ndarray
    resumed_at: np.ndarray
    eog_ids: np.ndarray
    is_eog: np.ndarray
    out: np.ndarray
    facts: np.ndarray
    info: np.ndarray
    mode: np.ndarray
    aside: np.ndarray
    bytes_left: np.ndarray
    unlike: np.ndarray
    shape: np.ndarray
    awaited: np.ndarray
    width: np.ndarray
    flight: np.ndarray


@njit(nogil=True, cache=True)
def note_shape(work, knobs, cost, memory, rows, in_batch, info):
    """After a change of shape on an accelerator, ticks of the streams alone are ``work.unlike`` all
    others: a captured graph has to be made again.

    What they take is the baseline of the guard, which is to be that of ticks that follow one
    another; where decoders of the background ride with nearly all ticks, the others come after a
    change.  So it is with those who ride with all of them (RIDERS_MS).  With other passengers, or
    where decoders take turns, the change is part of what it costs.
    """
    shape = rows if rows == in_batch else -1
    alone = info[PASSENGERS] == 0.0 and rows == memory.found[KIND_DECODE]
    steady = info[RIDERS_MS] > 0.0 or alone and is_known(cost, 0, rows, 0)
    if knobs.paced and steady and shape not in (-1, work.shape[0]):
        work.unlike[0] = max(work.unlike[0], UNLIKE)
    work.shape[0] = shape


@njit(nogil=True, cache=True)
def run_ticks(
    most, tick, given, fixed, native, places, pool, cells, span, columns, state, plan, batch, knobs,
    cost, memory, traffic, budget, orders, settings, scratch, work,
):  # fmt: skip
    """Run up to ``most`` ticks; returns (why it came back, number of the last tick).

    ``given``: entries of a plan that is made already, for the first tick; -1 = the compiled policy
    plans; RESUME = the first tick was submitted before UNDER_WAY was returned.  Where the backend
    overlaps, the tokens of one tick are published while the next one computes; elsewhere before it
    is submitted, since submitting waits for the result.
    """
    header, flight = columns.header, work.flight
    unpublished = flying = False
    first_turn = flight[PARITY] if given == RESUME else 0
    work.out[:] = 0
    for turn in range(most):
        now, last = (first_turn + turn) % 2, (first_turn + turn + 1) % 2
        facts, info = work.facts[now], work.info[now]
        if given == RESUME and turn == 0:
            status, entries, outputs = 0, flight[ENTRIES], flight[OUTPUTS_SENT]
            turns_before, usual = flight[TURNS], flight[USUAL] != 0
        else:
            started = now_ns(native)
            used = _cells(state)
            if given >= 0 and turn == 0:
                entries = given
            else:
                memory.next_part[0] = next_part_ms(orders.gate)
                if knobs.sliced:
                    memory.next_part[1] = next_part_tokens(orders.gate)
                    if memory.next_part[1] > 0.0:
                        learn_longest(
                            cost, memory.next_part[1], orders.gate[LONGEST] / 1e6,
                            0.0 < plan.info[SLICE_MS] < memory.next_part[0],
                        )  # fmt: skip
                left = _bytes_left(work.bytes_left, budget, knobs, started)
                view = Tick(tick, started, fixed.n_ctx - used, used, left)
                entries = plan_tick(state, view, knobs, cost, memory, traffic, plan)
            if knobs.can_aside and (knobs.paced or knobs.sliced):
                _orders(native, state.lane, orders, work.aside, plan.aside, started)
                if knobs.sliced:
                    redo = plan.info[REDOES] > 0.0
                    if redo:  # what was granted before is not taken then
                        orders.grant[0] = int(plan.info[CHUNK_BESIDE])
                    choose_owner(
                        orders.gate, orders.running[0], plan.aside[0] >= 0, plan.info[MODE] == 0.0,
                        redo, native, orders.wake_fd,
                    )  # fmt: skip
                grant_chunk(orders, native, int(plan.info[CHUNK_BESIDE]), plan.info[FLOWS] > 0.0)
                if knobs.paced:
                    always = plan.info[SLICE_MS] >= ALL_THE_TIME
                    set_gate(orders.gate, OPEN if always else 0, native, orders.wake_fd)
            why = NOTHING
            if entries:
                need = 0
                for e in range(entries):
                    need += plan.counts[e]
                why = NO_ROOM if used + need > fixed.n_ctx else ENOUGH
            if why != ENOUGH:
                if unpublished:
                    wake(native)
                    account(
                        header, columns.ticks, cost, memory, traffic, budget, fixed, native, pool,
                        scratch, work.facts[last], work.info[last], work.bytes_left)  # fmt: skip
                    unpublished = False
                if why == NOTHING and _can_land(knobs, orders, state, plan, started):
                    return ATTENTION, tick
                if why == NOTHING and plan.info[WAIT_MS] > 0.0:
                    # the budget of bytes is used up, or all there is runs beside the ticks
                    header[t.H_HEARTBEAT_NS] = started
                    if orders.running[0] >= 0:
                        header[t.H_WORK_SINCE_NS] = started  # not idle
                    if readable(native, int(plan.info[WAIT_MS])):
                        return ATTENTION, tick
                    continue
                work.out[OUT_ENTRIES] = entries
                return why, tick
            spent = 0
            if knobs.sliced:
                stops = waits(orders.gate)
            else:
                stops = orders.turns[0] % 2 == 1
                loads_first()
                stops = stops and not orders.gate[WHOLE]
            if LEAST_SLICE_MS < plan.info[SLICE_MS] < ALL_THE_TIME and stops:
                if unpublished:  # nobody's token waits for a prompt
                    wake(native)
                    account(
                        header, columns.ticks, cost, memory, traffic, budget, fixed, native, pool,
                        scratch, work.facts[last], work.info[last], work.bytes_left)  # fmt: skip
                    unpublished = False
                until = started + int(plan.info[SLICE_MS] * 1e6)
                if knobs.paced:
                    ended = let_through(
                        orders.gate, orders.turns, started, until, native, orders.wake_fd
                    )  # fmt: skip
                else:
                    place_threads(places, _threads(fixed, 0, 2))
                    # it can hang as a tick can
                    header[t.H_TICK_START_NS] = header[t.H_HEARTBEAT_NS] = started
                    header[t.H_BUSY] = BUSY_DECODE
                    ended = run_parts(orders.gate, native, until, orders.wake_fd)
                spent, started = ended - started, ended
                if header[t.H_WORK_SINCE_NS]:
                    header[t.H_WORK_SINCE_NS] += spent  # no overhead
            _set_mode(fixed, native, work.mode, int(plan.info[MODE]))
            if knobs.can_aside and not (knobs.paced or knobs.sliced):
                _orders(native, state.lane, orders, work.aside, plan.aside, started)
            info[:] = plan.info
            in_batch, outputs, rows = fill(
                entries, plan.slots, plan.counts, columns.tokens, columns.n_past, columns.n_tokens,
                columns.seq, batch.token, batch.pos, batch.seq, batch.logits, batch.out_slot,
                batch.out_row,
            )  # fmt: skip
            batch.n_tokens[0] = in_batch
            if entries == 1 and outputs == 1 and used == 0:
                batch.n_tokens[0] = fill_up(
                    in_batch, work.width[0], fixed.spare, batch.token, batch.pos, batch.seq,
                    batch.logits,
                )  # fmt: skip
            read = attended = 0
            for e in range(entries):
                s = plan.slots[e]
                columns.in_tick[s] = 1
                read += columns.n_past[s] + plan.counts[e]
                attended += columns.n_past[s] * plan.counts[e]
            header[t.H_TICK_START_NS] = started
            header[t.H_HEARTBEAT_NS] = started
            header[t.H_BUSY] = BUSY_DECODE
            facts[BEGAN], facts[TOKENS], facts[OUTPUTS], facts[DECODING] = (
                started, in_batch, outputs, rows,
            )  # fmt: skip
            facts[KV_READ], facts[KV_USED], facts[TOLD] = read, used, 0
            facts[ATTENDED], facts[SLICE] = attended, spent
            turns_before = orders.turns[0]
            facts[BESIDE] = 1 if knobs.paced and _computes(orders) else 0
            note_shape(work, knobs, cost, memory, rows, in_batch, plan.info)
            usual = work.unlike[0] == 0
            facts[THROUGH] = 0
            if knobs.paced and usual and turns_before % 2 == 1 and orders.gate[WHOLE]:
                facts[THROUGH] = 1 + orders.gate[SIZE]
            facts[CHANGED] = work.unlike[0]
            if work.unlike[0] > 0:
                work.unlike[0] -= 1
                facts[BESIDE] = 1
            n_threads = _threads(fixed, work.mode[0], in_batch)
            place_threads(places, n_threads)
            pool.team[TEAM_SIZE] = n_threads
            placed = batch.n_tokens[0]
            exactly = plan.aside[0] >= 0 or orders.running[0] >= 0  # a prompt may be copied soon
            make_room(cells, placed, in_batch - rows >= TOGETHER, exactly)
            taken = used
            if cells.words[VALID]:
                taken = cells.words[USED] - cells.cells[span.seq]
            hold_span(span, native, taken, placed, rows == in_batch)
            take_cells(cells, batch.seq, batch.pos, placed)
            sent = now_ns(native)
            facts[SUBMITTED] = sent
            if info[ABORT_MS] > 0.0:
                header[t.H_ABORT_UNTIL_NS] = sent + int(info[ABORT_MS] * 1e6)
                header[t.H_ABORT_ARMED] = 1
            status = call_i32_ptr_ptr(native.decode, native.context, native.batch)
            if unpublished:
                header[t.H_OVERLAPPED] += 1
                wake(native)
                account(
                    header, columns.ticks, cost, memory, traffic, budget, fixed, native, pool,
                    scratch, work.facts[last], work.info[last], work.bytes_left)  # fmt: skip
                unpublished = False
            if flying and status == 0:
                flight[PARITY], flight[ENTRIES], flight[OUTPUTS_SENT] = now, entries, outputs
                flight[TURNS], flight[USUAL] = turns_before, usual
                return UNDER_WAY, tick
        if status == 0:
            call_workers(pool, outputs)
            call_i64_ptr(native.synchronize, native.context)
        decoded = now_ns(native)
        facts[DECODED] = decoded
        if knobs.paced and (orders.turns[0] != turns_before or _computes(orders)):
            facts[BESIDE] = 1
        if orders.turns[0] != turns_before:
            facts[THROUGH] = 0
            # one that is short hardly ever lasts for a whole tick
            chunk_ms = cost.flow[orders.gate[SIZE], FLOW_MS]
            if knobs.paced and usual and orders.gate[WHOLE] and chunk_ms < 2.0 * info[PREDICTED_MS]:
                facts[THROUGH] = 1 + orders.gate[SIZE]
        armed = header[t.H_ABORT_ARMED]
        header[t.H_ABORT_ARMED] = 0
        header[t.H_BUSY] = BUSY_IDLE
        header[t.H_TICK_START_NS] = 0
        base = 0
        if status == 0 and outputs:
            base = call_i64_ptr_i32(native.logits_ith, native.context, batch.out_row[0])
            if base == 0:
                status = NO_LOGITS
        if status != 0:
            work.out[OUT_STATUS] = status
            work.out[OUT_ENTRIES] = entries
            return ABORTED if status == GIVEN_UP and armed else FAILED, tick
        # one behind the other, in the order of the batch (llama_get_logits); asking for each takes
        # 2 us on an accelerator
        for i in range(outputs):
            batch.out_row[i] = i
        # rows that take long go last: the others' tokens are with the front by then
        first = slow_last(
            outputs, batch.out_slot, batch.out_row, settings.whole, work.ended, work.sampled
        )
        for i in range(outputs):
            work.addresses[i] = base + 4 * fixed.n_vocab * batch.out_row[i]
        tick += 1
        settled = entries
        n_ended = done = 0
        while True:
            count = outputs - done if done else first
            sample_all(
                pool, done, count, batch.out_slot, work.addresses, fixed.n_vocab, settings,
                columns.tokens, columns.n_tokens, columns.n_prompt, work.eog_ids, scratch,
                work.sampled, columns.logprob, columns.top_ids, columns.top_logprobs,
            )  # fmt: skip
            sampled = now_ns(native)
            facts[SAMPLED] = sampled
            _credits(
                header, columns.t_last_ns, state.lane, state.cap, state.credit,
                earned(knobs), knobs.latency_cap, info[BASELINE_MS], batch.out_slot[done:], count,
                sampled,
            )  # fmt: skip
            n_ended += settle(
                settled, plan.slots, plan.counts, count, batch.out_slot[done:],
                work.sampled[done:], sampled, tick, columns.reason, columns.tokens,
                columns.token_ns, columns.n_tokens, columns.n_past, columns.n_prompt,
                columns.max_tokens, columns.in_tick, columns.isolate, columns.t_first_ns,
                columns.t_last_ns, work.served, work.is_eog, fixed.n_ctx, work.resumed_at,
                work.ended[n_ended:],
            )  # fmt: skip
            done += count
            if done == outputs:
                break
            settled = 0
            wake(native)
            facts[TOLD] = now_ns(native)
        without = _without_numbers(outputs, batch.out_slot, work.sampled)
        if n_ended or without:
            # who hears of an end finds everything counted
            account(
                header, columns.ticks, cost, memory, traffic, budget, fixed, native, pool,
                scratch, facts, info, work.bytes_left)  # fmt: skip
            for i in range(n_ended):
                header[t.H_CELLS_USED] -= columns.n_past[work.ended[i]]
            stores_first()  # a row that is DONE has all its tokens, and says why it ended
            for i in range(n_ended):
                state.state[work.ended[i]] = DONE
            wake(native)
            work.out[OUT_ENDED], work.out[OUT_WITHOUT] = n_ended, without
            return NOT_NUMBERS if without else ENDED, tick
        attention = readable(native)
        lands = flight[MUST_STOP] != 0 or _can_land(knobs, orders, state, plan, sampled)
        # nobody interactive waits for what Python is to do: the next decode is submitted before
        flying = fixed.overlap and attention and not lands and not _is_urgent(header, work.awaited)
        if (flying or fixed.overlap and not attention and not lands) and turn + 1 < most:
            unpublished = True
            continue
        attention = attention or lands
        if outputs:
            wake(native)
        account(
            header, columns.ticks, cost, memory, traffic, budget, fixed, native, pool,
            scratch, facts, info, work.bytes_left)  # fmt: skip
        if attention:
            return ATTENTION, tick
    return ENOUGH, tick


@njit(**INNER)
def _without_numbers(outputs, slots, sampled):
    """How many rows got no token since their logits are no numbers; ``slots`` has them in front."""
    n = 0
    for i in range(outputs):
        if sampled[i] == NO_NUMBERS:
            slots[n] = slots[i]
            n += 1
    return n


@njit(**INNER)
def _cells(state):
    used = 0
    for s in range(state.state.shape[0]):
        if state.state[s] == RUNNING:
            used += state.n_past[s]
    return used


@njit(**INNER)
def _bytes_left(left, budget, knobs, now):
    """Bytes that background work may move now: a bucket of one tick budget, filled by time."""
    bps = bandwidth.budget_bps(budget)
    if bps <= 0.0 or not knobs.features & BANDWIDTH:
        return np.inf
    full = bandwidth.budget_bytes(bps, knobs.tick_budget_ms)
    if left[1] == 0.0:
        left[0] = full
    else:
        left[0] = min(left[0] + bps * (now - left[1]) * 1e-9, full)
    left[1] = now
    return left[0]


@njit(**INNER)
def _can_land(knobs, orders, state, plan, now):
    """Whether a piece of a prompt waits that may be copied by now."""
    if not knobs.paced or orders.pending[0] < 0:
        return False
    # somebody interactive is next, and what lies in front of theirs has to go
    if plan.aside[0] >= 0 and state.lane[plan.aside[0]] == 0:
        return True
    return may_land(state, orders.pending[0], (now - orders.pending_ns[0]) / 1e6)


@njit(**INNER)
def _is_urgent(header, awaited):
    """Whether somebody interactive is on the way in."""
    return awaited[0] != 0 or header[t.H_URGENT] != header[t.H_URGENT_SEEN]


@njit(**INNER)
def _computes(orders):
    """Whether a chunk of a prompt is being computed in the second context, and does not wait."""
    gate = orders.gate
    return orders.turns[0] % 2 == 1 and (gate[UNTIL] != 0 or gate[PARKED] == 0)


@njit(**INNER)
def _set_mode(fixed, native, current, mode):
    """Leave cores to a prompt beside the ticks, or take them back."""
    if mode == current[0]:
        return
    current[0] = mode
    one, many = _threads(fixed, mode, 1), _threads(fixed, mode, 2)
    call_i64_ptr_i32_i32(native.set_threads, native.context, one, many)


@njit(**INNER)
def _threads(fixed, mode, tokens):
    """Threads of a tick of so many tokens."""
    if mode:
        beside = fixed.threads_beside
        return min(fixed.threads, beside) if tokens == 1 else beside
    return fixed.threads if tokens == 1 else fixed.threads_batch


@njit(**INNER)
def _orders(native, lane, orders, aside, wanted, now):
    """Tell the prefill worker what to compute; what it shall not, is the ticks' again."""
    n = 0
    while n < aside.shape[0] and wanted[n] >= 0:
        n += 1
    changed = False
    for s in range(aside.shape[0]):
        listed = False
        for i in range(n):
            if wanted[i] == s:
                listed = True
                break
        if aside[s] == 1 and not listed:
            orders.epoch[s] += 1  # nothing more of it lands
            aside[s] = 0
            changed = True
        elif listed and aside[s] == 0:
            aside[s] = 1
            changed = True
    if not changed and n == 0:
        return
    running = orders.running[0]
    stop = n == 0
    if n and running >= 0 and wanted[0] != running:
        # a background prompt in flight gives way to an interactive one, though not for ever
        late = (now - orders.started_ns[0]) / 1e6 > BACK_WAIT_MS
        stop = lane[wanted[0]] < lane[running] and not late or aside[running] != 1
    give_orders(orders, native, wanted, n, stop)


@njit(**INNER)
def _credits(
    header, t_last_ns, lane, cap, credit, more, latency_cap, baseline_ms, slots, count, now
):  # fmt: skip
    """Error budget of the interactive sessions that get a token now; runs before ``settle``."""
    if baseline_ms <= 0.0:
        return
    for i in range(count):
        s = slots[i]
        if lane[s] != 0 or t_last_ns[s] == 0:
            continue
        gap_ms = (now - t_last_ns[s]) / 1e6
        credit[s], slow = settle_credit(
            credit[s], more, cap[s], latency_cap, baseline_ms, gap_ms
        )
        if slow:
            header[t.H_SLOW_TOKENS] += 1
