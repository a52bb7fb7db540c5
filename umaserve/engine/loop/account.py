"""What a finished tick leaves behind: counters, the tick ring, what the policy learns from it."""

from __future__ import annotations

from umaserve.engine.native.calls import now_ns, stores_first
from umaserve.engine.samplers.rows import take_counts
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.accelerator.beside import FLOW_KNOWN
from umaserve.policy.base import (
    FLAG_GUARDED,
    FLAG_SKIPPED_PREFILL,
    FLAG_TRIMMED,
)
from umaserve.policy.bytes import bandwidth
from umaserve.policy.cost.model import FLOW_AGAIN, FLOW_AT, FLOW_SEEN, RELIEVED, learn, learn_flow
from umaserve.policy.guarded import observe
from umaserve.policy.latency_guard import learn_tails
from umaserve.wire import table as t

TICK_RING = t.TICK_RING
FLAG_ASIDE_BIT, FLAG_SPENT_BIT, FLAG_GUARD_BIT = 4, 2, 1


@njit(nogil=True, cache=True)
def learn_tick(cost, memory, info, facts, past, wall_ms, number):
    """What tick ``number`` says about others like it: ``facts`` and ``info`` are its, ``past`` the
    KV cells that each of its tokens attended to.

    A disturbed one says nothing about others, but for this: alone it takes no longer.  After a
    landing, or a change of shape, nobody is kept out for what it takes.
    """
    if not facts.changed:
        observe(memory, info, wall_ms)
    mode, decoding = info.mode, facts.decoding_rows
    prompt_tokens, laden = facts.tokens - decoding, info.passengers > 0
    if not facts.disturbed:
        learn_tails(cost, info, decoding, prompt_tokens, wall_ms)
    if not facts.disturbed or laden and wall_ms < RELIEVED * info.predicted_ms:
        learn(cost, mode, decoding, prompt_tokens, past, wall_ms)
    through = facts.through - 1
    if through < 0 or info.predicted_ms <= 0.0:
        return
    # with passengers the prediction may rest on such ticks itself: better than nothing
    row = cost.flow[through]
    unknown = row[FLOW_SEEN] < FLOW_KNOWN or number - row[FLOW_AT] > FLOW_AGAIN
    if not laden or unknown:
        learn_flow(cost, through, wall_ms / info.predicted_ms, number)


@njit(**INNER)
def account(loop, parity):
    """Counters and the tick ring of one finished tick; runs after its tokens were published.

    ``parity``: which of the last two ticks it is.

    Long: a list of counters.
    """
    header, fixed, cost, budget = loop.columns.header, loop.fixed, loop.cost, loop.budget
    facts, info = loop.work.facts[parity], loop.work.info[parity]
    now = now_ns(loop.native)
    began, submitted, decoded = facts.began_ns, facts.submitted_ns, facts.decoded_ns
    sampled, told = facts.sampled_ns, facts.told_ns
    tokens, outputs, decoding = facts.tokens, facts.outputs, facts.decoding_rows
    prompt_tokens = tokens - decoding
    # published under the next decode, a tick ends where its sampling did
    end = sampled if fixed.overlap else now
    wall_ms = (end - began) / 1e6
    past = facts.cells_used if fixed.wide_reads else facts.attended / tokens
    learn_tick(cost, loop.memory, info, facts, past, wall_ms, header[t.H_TICKS] + 1)
    span = bandwidth.attention_span(facts.cells_used + tokens, fixed.n_ctx)
    moved = bandwidth.tick_bytes(
        loop.traffic, outputs, tokens, span if fixed.wide_reads else facts.cells_read, tokens, span
    )
    if not facts.disturbed:
        bandwidth.observe(budget, moved, decoded - submitted, tokens)
    loop.work.flight.bytes_left -= moved
    header[t.H_TICKS] += 1
    header[t.H_LONGEST_TICK_NS] = max(header[t.H_LONGEST_TICK_NS], end - began)
    header[t.H_DECODE_NS_TOTAL] += decoded - submitted
    header[t.H_TICK_NS_TOTAL] += end - began
    # from the end of the tick before, unless there was nothing to do in between
    since = header[t.H_WORK_SINCE_NS]
    header[t.H_WORK_NS_TOTAL] += end - (since if since else began)
    header[t.H_WORK_SINCE_NS] = end
    header[t.H_SAMPLE_NS_TOTAL] += sampled - decoded
    header[t.H_ROWS_SAMPLED] += outputs
    in_place, copied = take_counts(loop.pool, loop.scratch)
    header[t.H_ROWS_IN_PLACE] += in_place
    header[t.H_COPIED_BYTES] += copied
    header[t.H_DECODE_TOKENS] += decoding
    header[t.H_PREFILL_TOKENS] += prompt_tokens
    header[t.H_DECODE_ROWS_TOTAL] += decoding
    header[t.H_SERVED_DECODERS] = decoding
    header[t.H_LAST_BATCH] = tokens
    header[t.H_LAST_DECODE_NS] = decoded - submitted
    header[t.H_LAST_SAMPLE_NS] = sampled - decoded
    header[t.H_FIRST_CHUNK_NS] = (told if told else now) - decoded
    if wall_ms > fixed.budget_ms:
        header[t.H_TICKS_OVER_BUDGET] += 1
    flags = info.marks
    header[t.H_GUARD_ACTIVE] = 1 if flags & FLAG_GUARDED else 0
    if flags & FLAG_SKIPPED_PREFILL:
        header[t.H_SKIPPED_PREFILL] += 1
    if flags & FLAG_TRIMMED:
        header[t.H_BMT_TRIMMED] += 1
    if info.baseline_ms > 0.0:
        header[t.H_BASELINE_NS] = int(info.baseline_ms * 1e6)
    header[t.H_COST_ERROR_PPM] = int(cost.error[0] * 1e6)
    header[t.H_BMT_LAST_BYTES] = int(moved)
    header[t.H_BMT_BYTES_TOTAL] += int(moved)
    header[t.H_BMT_BUDGET_BPS] = int(bandwidth.budget_bps(budget))
    header[t.H_BMT_MEASURED_BPS] = int(bandwidth.measured_bps(budget))
    at = header[t.H_TICK_RING_AT]
    row = loop.columns.ticks[at % TICK_RING]
    row[t.T_END_S] = end / 1e9
    row[t.T_WALL_MS] = wall_ms
    row[t.T_DECODE_MS] = (decoded - submitted) / 1e6
    row[t.T_SAMPLE_MS] = (sampled - decoded) / 1e6
    row[t.T_DECODE_ROWS] = decoding
    row[t.T_PREFILL_TOKENS] = prompt_tokens
    row[t.T_CELLS] = header[t.H_CELLS_USED] = facts.cells_used + tokens
    row[t.T_INTERACTIVE_ROWS] = info.interactive_rows
    row[t.T_PREDICTED_MS] = info.predicted_ms
    row[t.T_BASELINE_MS] = info.baseline_ms
    row[t.T_BMT_MB] = moved / 1e6
    row[t.T_ALLOWED_MS] = info.allowed_ms
    row[t.T_SLICE_MS] = facts.slice_ns / 1e6
    row[t.T_FLAGS] = flags & (FLAG_GUARD_BIT | FLAG_SPENT_BIT | FLAG_ASIDE_BIT)
    stores_first()
    header[t.H_TICK_RING_AT] = at + 1
