"""Latency guard: how long a tick may take so that interactive streams keep their pace.

Each interactive session that decodes has a deadline: its last token plus the cap times the
baseline.  The baseline is the time between tokens of the interactive sessions alone.  What a tick
may take beyond the turns that the session still has to wait for is its slack.  The smallest slack
bounds the tick.

Beyond the cap there is an error budget.  Of a session's tokens 4 in 100 (on an accelerator 3) may
come later, though never later than twice the baseline.  The 95th percentile still holds.  A
session earns it token by token; whatever makes a token late spends it, the noise of the machine
too.
"""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .base import (
    ERROR_BUDGET,
    FLAG_GUARDED,
    KIND_DECODE,
    RUNNING,
)
from .cost.model import ALONE, LADEN, is_known, learn_tail, row_class

# Where prompts get slices of time, this share of what the cap leaves is planned for.  Predictions
# are not exact, and the accelerator's ticks hardly vary.
MARGIN = 0.9
TAIL_KNOWN = 16.0  # ticks after which their 95th percentile is believed
HARD = 1.9  # times the baseline: no pause is planned beyond it
# slow tokens a session earns with each token; 5 in 100 would put the 95th percentile on the edge.
# On an accelerator ticks are so short that a client, which reads late, makes 1 in 100 slow itself.
EARNED, EARNED_PACED = 0.04, 0.03
MOST_CREDIT = 2.5
LEAST_CREDIT = -1.0
FIRST_CREDIT = 1.0  # a new session starts with one
SPARE = 0.06  # of the baseline that a slice leaves of the cap: parts and ticks may take longer
RESERVED = 1.0  # credit that background work leaves for an interactive prompt

FAR_MS = 1e12


@njit(**INNER)
def allowance(state, tick, knobs, cost, memory, plan, mode):
    """How much longer than its own rows an interactive tick may take.

    Returns (ms within the cap, ms within the error budget, least credit of the sessions).  All are
    0.0 where the baseline is not known yet.
    """
    n = memory.found[KIND_DECODE]
    base = memory.round_ms[0, n]
    usual, laden = noise(memory, cost, 0, n), 0.0
    if not knobs.paced:
        usual = _tail(memory, cost, 0, n, ALONE, usual)
        laden = _tail(memory, cost, mode, n, LADEN, usual)
    plan.info.baseline_ms = base * usual
    if base <= 0.0:
        return 0.0, 0.0, 0.0
    count = 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_DECODE:
            # by the time of the last token: insertion keeps it sorted
            i = count
            while i > 0 and memory.due_ns[memory.order[i - 1]] > memory.due_ns[s]:
                memory.order[i] = memory.order[i - 1]
                i -= 1
            memory.order[i] = s
            count += 1
    group, alone = memory.group[mode], memory.alone_ms[mode]
    within_cap, within_budget, credit = FAR_MS, FAR_MS, FAR_MS
    need, served = 0.0, 0
    for i in range(n):
        if i == served:
            size = group[n - served]
            need += alone[size] if alone[size] > 0.0 else base
            served += size
        s = memory.order[i]
        since = 0.0
        if memory.due_ns[s]:
            since = max((tick.now_ns - memory.due_ns[s]) / 1e6, 0.0)
        cap = state.cap[s] if state.cap[s] > 0.0 else knobs.latency_cap
        gap, hard = (1.0 + (cap - 1.0) * MARGIN) * base, HARD * base
        if not knobs.paced:
            # in the mean a stream is no slower than the cap says, however much its ticks vary.  One
            # that is late may be so by as much as they do
            hard = max(HARD * usual / laden, 1.0) * base
            if not memory.kept.shared:  # else predictions that fail would cost others their share
                gap = cap * base
        if state.target_tbt_ms[s] > 0.0:
            gap = min(gap, max(state.target_tbt_ms[s], base))
        within_cap = min(within_cap, gap - since - need)
        within_budget = min(within_budget, max(hard, gap) - since - need)
        credit = min(credit, state.credit[s])
    if not knobs.features & ERROR_BUDGET:
        within_budget = within_cap
    return max(within_cap, 0.0), max(within_budget, 0.0), credit


@njit(nogil=True, cache=True)
def poorest(state):
    """The least credit of the interactive sessions that decode; much if there are none."""
    least = FAR_MS
    for s in range(state.state.shape[0]):
        decodes = state.n_tokens[s] - state.n_past[s] == 1
        if state.state[s] == RUNNING and state.lane[s] == 0 and decodes:
            least = min(least, state.credit[s])
    return least


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
def _tail(memory, cost, mode, n, load, otherwise):
    """The 95th percentile of a round of ``n`` decoders over its prediction, as it was learned."""
    g = memory.group[mode, n]
    tail = cost.tails[mode, row_class(g), load]
    if g <= 0 or tail.seen < TAIL_KNOWN:
        return otherwise
    return 1.0 + (tail.times - 1.0) / np.sqrt(-(-n // g))


@njit(nogil=True, cache=True)
def learn_tails(cost, info, rows, prompt_tokens, wall_ms):
    """Take a finished tick of interactive rows into account, before its mean is learned from it.

    Alone is one with nobody else about, who would have his turn sooner or later.  A shape that is
    hardly known says more about its prediction than about the machine.
    """
    mode, served = info.mode, info.interactive_rows
    if served == 0 or info.predicted_ms <= 0.0 or not is_known(cost, mode, rows, prompt_tokens):
        return
    times = wall_ms / info.predicted_ms
    if info.passengers > 0:
        learn_tail(cost, mode, served, LADEN, times)
    elif not info.marks & FLAG_GUARDED:
        learn_tail(cost, mode, served, ALONE, times)


@njit(nogil=True, cache=True)
def earned(knobs):
    """Slow tokens that a session earns with each token."""
    return EARNED_PACED if knobs.paced else EARNED


@njit(nogil=True, cache=True)
def settle_credit(credit, more, cap, latency_cap, baseline_ms, gap_ms):
    """The credit of a session after a token that came ``gap_ms`` after the one before.

    ``more``: what a token on time earns (`earned`).  Returns (credit, whether the token was slow).
    """
    limit = (cap if cap > 0.0 else latency_cap) * baseline_ms
    if baseline_ms > 0.0 and gap_ms > limit:
        return max(credit - 1.0, LEAST_CREDIT), True
    return min(credit + more, MOST_CREDIT), False
