"""Latency guard: how long a tick may take so that interactive streams keep their pace.

Each interactive session that decodes has a deadline: its last token plus the cap times the
baseline.  The baseline is the time between tokens of the interactive sessions alone.  What a tick
may take beyond the turns that the session still has to wait for is its slack.  The smallest slack
bounds the tick.

A prompt that somebody waits for may take more, within the pace of readers (`umaserve.policy.pace`).

Background may take more within an error budget.  Of a session's tokens 4 in 100 may be later than
the cap, so the 95th percentile still holds.  A session earns the budget token by token; whatever
makes a token late spends it, the noise of the machine too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit

from .base import ERROR_BUDGET, FLAG_GUARDED, KIND_DECODE
from .cost.model import learn_tail, row_class
from .cost.prediction import is_known
from .pace import FAR_MS, is_hurried, longest_ms, mean_ms, note_gap, shared_ms

# On an accelerator this share of what the cap leaves is planned for: predictions are not exact, and
# its ticks hardly vary.
MARGIN = 0.9
TAIL_KNOWN = 16.0  # ticks after which their 95th percentile is believed
EARNED = 0.04  # slow tokens that a session earns with each token; 0.05 would be on the edge
MOST_CREDIT = 2.5
# Debt is counted so far.  On an accelerator one long tick makes three tokens late: the two ticks
# after it capture their graph anew.
LEAST_CREDIT = -3.0
FIRST_CREDIT = 1.0  # a new session starts with one
LATE = 0.5  # of the longest tick; beside a stream that is later, short prompts come in chunks
SPARE = 0.06  # of the baseline that a slice leaves of the cap: parts and ticks may take longer


class Allowance(NamedTuple):
    """How much longer than the rows of the streams a tick may take, in ms.

    All are 0.0 where the baseline is not known yet.
    """

    cap_ms: float  # within the latency cap
    pace_ms: float  # for a prompt that somebody waits for
    short_ms: float  # for all of a short one
    late_ms: float  # for background that spends credit
    credit: float  # of the poorest stream, in slow tokens


@njit(**INNER)
def allowance(state, tick, knobs, cost, memory, plan, mode, graph):
    """Return the `Allowance` of a tick of streams, and note the baseline in the plan.

    ``graph``: tokens that libllama computes at once.
    """
    n = memory.found[KIND_DECODE]
    base = memory.round_ms[0, n]
    usual = noise(memory, cost, 0, n)
    if not knobs.overlaps:
        usual = _tail(memory, cost, n, usual)
    plan.info.baseline_ms = base * usual
    if base <= 0.0:
        return Allowance(0.0, 0.0, 0.0, 0.0, 0.0)
    _order_by_last_token(memory)
    shared = shared_ms(state, memory, base)
    pace = FAR_MS
    for i in range(n):
        pace = min(pace, mean_ms(state, knobs, memory.order[i], base, shared))
    worthwhile, longest = longest_ms(knobs, cost, memory, base, pace, graph)
    memory.kept.longest_ms = worthwhile
    group, alone = memory.group[mode], memory.alone_ms[mode]
    cap_ms, pace_ms, short_ms, late_ms, credit = FAR_MS, FAR_MS, FAR_MS, FAR_MS, FAR_MS
    need, served, hurried = 0.0, 0, is_hurried(state, tick, memory)
    for i in range(n):
        if i == served:
            size = group[n - served]
            need += alone[size] if alone[size] > 0.0 else base
            served += size
        s = memory.order[i]
        since = 0.0
        if memory.due_ns[s]:
            since = max((tick.now_ns - memory.due_ns[s]) / 1e6, 0.0)
        gap = _gap_ms(state, knobs, memory, s, base)
        mean = mean_ms(state, knobs, s, base, shared)
        late = note_gap(state, memory, s, mean, longest)
        cap_ms = min(cap_ms, gap - since - need)
        on_time = late <= 0.0
        pace_ms = min(pace_ms, (longest if on_time or hurried else gap) - since - need)
        short_ms = min(short_ms, (longest if late <= LATE * longest else gap) - since - need)
        late_ms = min(late_ms, (max(worthwhile, mean, gap) if on_time else gap) - since - need)
        credit = min(credit, state.credit[s])
    if not knobs.features & ERROR_BUDGET:
        late_ms = cap_ms
    cap_ms = max(cap_ms, 0.0)
    return Allowance(cap_ms, max(pace_ms, cap_ms), short_ms, max(late_ms, 0.0), credit)


@njit(**INNER)
def _order_by_last_token(memory):
    """Fill ``memory.order`` with the streams, that of the oldest last token first."""
    count = 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_DECODE:
            i = count
            while i > 0 and memory.due_ns[memory.order[i - 1]] > memory.due_ns[s]:
                memory.order[i] = memory.order[i - 1]
                i -= 1
            memory.order[i] = s
            count += 1


@njit(**INNER)
def _gap_ms(state, knobs, memory, s, base):
    """Ms between tokens of a stream that its cap allows."""
    cap = state.cap[s] if state.cap[s] > 0.0 else knobs.latency_cap
    gap = cap * base
    if knobs.overlaps or memory.kept.shared:
        # where programs share turns, predictions that fail would cost others their share
        gap = (1.0 + (cap - 1.0) * MARGIN) * base
    if state.target_tbt_ms[s] > 0.0:
        gap = min(gap, max(state.target_tbt_ms[s], base))
    return gap


@njit(**INNER)
def strictest_cap(state, knobs, memory):
    """The least latency cap of the interactive sessions that decode; the daemon's at most."""
    cap = knobs.latency_cap
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_DECODE and state.cap[s] > 0.0:
            cap = min(cap, state.cap[s])
    return cap


@njit(nogil=True, cache=True)
def noise(memory, cost, mode, n):
    """The 95th percentile of a round of ``n`` decoders alone, over its mean.

    The promise compares 95th percentiles, so what the cap multiplies is one.  It is the mean round
    and two mean absolute deviations (a normal distribution's 95th percentile is 2.06 of them
    above).  The deviations of several ticks partly cancel.
    """
    g = memory.group[mode, n]
    r = row_class(g)
    mean = cost.mean[mode, r, 0]
    if g <= 0 or mean <= 0.0:
        return 1.0
    turns = -(-n // g)
    return 1.0 + min(2.0 * cost.spread[mode, r, 0] / mean, 1.0) / np.sqrt(turns)


@njit(**INNER)
def _tail(memory, cost, n, otherwise):
    """The 95th percentile of a round of ``n`` decoders over its prediction, as it was learned."""
    g = memory.group[0, n]
    tail = cost.tails[row_class(g)]
    if g <= 0 or tail.seen < TAIL_KNOWN:
        return otherwise
    return 1.0 + (tail.times - 1.0) / np.sqrt(-(-n // g))


@njit(nogil=True, cache=True)
def learn_tails(cost, info, rows, prompt_tokens, wall_ms):
    """Learn from a finished tick of streams with nobody else about, before its mean is learned.

    A shape that is hardly known says more about its prediction than about the machine.
    """
    served = info.interactive_rows
    if served == 0 or info.mode or info.passengers > 0 or info.marks & FLAG_GUARDED:
        return
    if info.predicted_ms > 0.0 and is_known(cost, 0, rows, prompt_tokens):
        learn_tail(cost, served, wall_ms / info.predicted_ms)


@njit(nogil=True, cache=True)
def settle_credit(credit, cap, latency_cap, baseline_ms, gap_ms):
    """The credit of a session after a token that came ``gap_ms`` after the one before.

    Returns (credit, whether the token was slow).
    """
    limit = (cap if cap > 0.0 else latency_cap) * baseline_ms
    if baseline_ms > 0.0 and gap_ms > limit:
        return max(credit - 1.0, LEAST_CREDIT), True
    return min(credit + EARNED, MOST_CREDIT), False
