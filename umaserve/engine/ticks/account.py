"""Accounts of a finished tick (counters, ring, costs that the policy learns), and wakes for it."""

from __future__ import annotations

from umaserve.engine.cells.accounting import count_used
from umaserve.engine.native.calls import now_ns, stores_first, wake
from umaserve.engine.samplers.rows import take_counts
from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import (
    FLAG_ASIDE,
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_SPENT,
    FLAG_TRIMMED,
)
from umaserve.policy.bytes import bandwidth
from umaserve.policy.cost.model import RELIEVED, learn
from umaserve.policy.cost.prediction import predict
from umaserve.policy.latency_guard import learn_tails, settle_credit
from umaserve.policy.without_streams import note_done
from umaserve.wire import table as t

TICK_RING = t.TICK_RING


@njit(nogil=True, cache=True)
def learn_tick(cost, memory, info, facts, past, wall_ms):
    """Learn what a finished tick says about others like it.

    ``past``: KV cells that each of its tokens attended to.  A disturbed tick says nothing about
    others, but for this: alone it takes no longer.  Where drafts change the shape, what that costs
    is known apart (`umaserve.drafts.pace`), and is no part of a price.
    """
    if facts.changed and facts.may_draft:
        return
    note_done(memory, info)
    decoding = facts.decoding_rows + facts.drafted
    prompt_tokens, laden = facts.tokens + facts.filled - decoding, info.passengers > 0
    if not facts.disturbed and not facts.drafted:
        learn_tails(cost, info, decoding, prompt_tokens, wall_ms)
    if not facts.disturbed or laden and wall_ms < RELIEVED * info.predicted_ms:
        learn(cost, info.mode, decoding, prompt_tokens, past, wall_ms)


@njit(nogil=True, cache=True)
def is_for_pace(facts):
    """Whether the time that a tick took counts for the pace that streams are promised.

    Drafts make a tick longer and bring more tokens with it; so does the change of shape to it and
    back.  No one else has made the streams wait.
    """
    return facts.drafted == 0 and not (facts.changed and facts.may_draft)


@njit(**INNER)
def _gained_ns(cost, facts, mode, past, wall_ms):
    """Predicted ns of a tick's tokens without its drafts, less its own ns; 0 = not known."""
    rows = facts.decoding_rows
    prompt = facts.tokens - rows - facts.drafted
    without = predict(cost, mode, rows, prompt, past) * (rows + facts.taken) / rows
    return int((without - wall_ms) * 1e6) if without > 0.0 else 0


@njit(**INNER, _nrt=True)
def _keep_row(loop, parity, end_ns, moved):
    """The row of the tick ring of a finished tick: when it ended, and the bytes that it moved."""
    header, facts, info = loop.columns.header, loop.work.facts[parity], loop.work.info[parity]
    decoding, decoded = facts.decoding_rows, facts.decoded_ns
    at = header.tick_ring_at
    row = loop.columns.ticks[at % TICK_RING]
    row.end_s = end_ns / 1e9
    row.wall_ms = (end_ns - facts.began_ns) / 1e6
    row.decode_ms = (decoded - facts.submitted_ns) / 1e6
    row.sample_ms = (facts.sampled_ns - decoded) / 1e6
    row.decode_rows = decoding
    row.prefill_tokens = facts.tokens - decoding - facts.drafted
    row.drafted = facts.drafted
    row.accepted = facts.taken
    row.cells = facts.cells_used + facts.tokens
    row.interactive_rows = info.interactive_rows
    row.predicted_ms = info.predicted_ms
    row.baseline_ms = info.baseline_ms
    row.bmt_mb = moved / 1e6
    row.allowed_ms = info.allowed_ms
    row.slice_ms = facts.slice_ns / 1e6
    row.flags = info.marks & (FLAG_GUARDED | FLAG_SPENT | FLAG_ASIDE)
    stores_first()
    header.tick_ring_at = at + 1


@njit(**INNER, _nrt=True)
def account(loop, parity):
    """Count a finished tick (of two: ``parity``), and keep it in the ring; behind its tokens."""
    header, fixed, knobs = loop.columns.header, loop.fixed, loop.knobs
    cost, budget = loop.cost, loop.budget
    facts, info = loop.work.facts[parity], loop.work.info[parity]
    now = now_ns(loop.native)
    began, submitted, decoded = facts.began_ns, facts.submitted_ns, facts.decoded_ns
    sampled = facts.sampled_ns
    tokens, outputs, decoding = facts.tokens, facts.outputs, facts.decoding_rows
    prompt_tokens, got = tokens - decoding - facts.drafted, decoding + facts.taken
    # published under the next decode, a tick ends where its sampling did
    end = sampled + facts.heard_ns if knobs.overlaps else now
    wall_ms = (end - began) / 1e6
    past = facts.cells_used if knobs.wide_reads else facts.attended / tokens
    learn_tick(cost, loop.memory, info, facts, past, wall_ms - facts.rounds_ns / 1e6)
    span = bandwidth.attention_span(facts.cells_used + tokens, fixed.n_ctx)
    moved = bandwidth.tick_bytes(
        loop.traffic, outputs, tokens, span if knobs.wide_reads else facts.cells_read, tokens, span
    )
    if not facts.disturbed:
        bandwidth.observe(budget, moved, decoded - submitted, tokens)
    loop.work.flight.bytes_left -= moved
    header.ticks += 1
    header.longest_tick_ns = max(header.longest_tick_ns, end - began)
    header.decode_ns_total += decoded - submitted
    header.tick_ns_total += end - began
    # from the end of the tick before, unless there was nothing to do in between
    since = header.work_since_ns
    header.work_ns_total += end - (since if since else began)
    header.work_since_ns = end
    header.sample_ns_total += sampled - decoded
    header.rows_sampled += outputs
    in_place, copied = take_counts(loop.pool, loop.scratch)
    header.rows_in_place += in_place
    header.copied_bytes += copied
    header.decode_tokens += got
    header.prefill_tokens += prompt_tokens
    header.decode_rows_total += decoding
    header.served_decoders = decoding
    header.last_batch = tokens
    header.last_decode_ns = decoded - submitted
    header.last_sample_ns = sampled - decoded
    if facts.drafted:
        header.draft_tokens += facts.drafted
        header.draft_accepted += facts.taken
        whole_ms = wall_ms + facts.speech_ns / 1e6
        header.draft_gained_ns += _gained_ns(cost, facts, info.mode, past, whole_ms)
    header.first_chunk_ns = now - decoded
    if wall_ms > knobs.tick_budget_ms:
        header.ticks_over_budget += 1
    _tell_plan(header, info)
    header.cost_error_ppm = int(cost.error[0] * 1e6)
    header.bmt_last_bytes = int(moved)
    header.bmt_bytes_total += int(moved)
    header.bmt_budget_bps = int(bandwidth.budget_bps(budget))
    header.bmt_measured_bps = int(bandwidth.measured_bps(budget))
    header.cells_used = count_used(loop.state.state, loop.state.n_past, loop.columns.more_cells)
    _keep_row(loop, parity, end, moved)


@njit(**INNER, _nrt=True)
def _tell_plan(header, info):
    """Counters of the plan of one finished tick."""
    flags = info.marks
    header.guard_active = 1 if flags & FLAG_GUARDED else 0
    if flags & FLAG_SKIPPED_PREFILL:
        header.skipped_prefill += 1
    if flags & FLAG_TRIMMED:
        header.bmt_trimmed += 1
    if info.baseline_ms > 0.0:
        header.baseline_ns = int(info.baseline_ms * 1e6)


@njit(**INNER)
def settle_credits(columns, state, knobs, baseline_ms, slots, count, now, may_be_late):
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


@njit(**INNER, _nrt=True)
def publish_last(loop):
    """Wake the front for the tokens of the tick before, if they wait for that, and account it."""
    if loop.work.flight.unpublished:
        wake(loop.native)
        account(loop, 1 - loop.work.flight.parity)
        loop.work.flight.unpublished = 0
