"""Burst: requests that come together are answered together.

A stream that began a moment ago is no reason to pace the prompts of those that came with it.  Had
its own prompt been computed last, it would have begun when they do.  So for the first second of the
answers the prompts of such requests go into the ticks at once.  That holds as far as they can be
finished within that second.

What a program sends together has ten seconds, as an agent does that asks its helpers.  Nobody else
may be there, and one more stream in a tick has to cost less than a turn of its own.  The last
answer ends sooner then.  The first ones pay for it with slow tokens, which cost no credit.

A stream that is older, or a request that comes later, changes nothing: they are paced as ever.
"""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .base import (
    BURST,
    ERROR_BUDGET,
    GUARD,
    KIND_ASIDE,
    KIND_BURST,
    KIND_DECODE,
    KIND_PROMPT,
    LANES,
)
from .cost.model import predict
from .latency_guard import LEAST_CREDIT, poorest
from .prompts import sooner
from .urgency import sent_with_all

YOUNG_MS = 1000.0  # of an answer: a wait that does not break a reader's train of thought
OWN_MS = 10_000.0  # of answers to what was sent together: it keeps the attention (Miller 1968)
TOGETHER_MS = 50.0  # after a first token: requests are read between ticks only
LONG_TICKS = 4  # tick budgets that a stream waits for them at most, beside its own tick
SHORT_PROMPT = 64  # tokens of interactive prompts that need not save up for the error budget
AT_ONCE = 128  # tokens of them that are finished in the next tick if it is paid for
SLOW_ROUNDS = 4.0  # that streams wait for a short prompt, where this is more than a tick budget


@njit(**INNER)
def gather(state, tick, knobs, cost, memory):
    """Mark the interactive prompts that came with all the streams ``KIND_BURST``.

    The shortest first, while all of them are predicted to be finished before the oldest stream is
    a second old.  It may be ten where all that is interactive was sent together.  Returns how many
    tokens they have, and how many ms a tick may take for them; 0, 0.0 if there are none.
    """
    found = memory.found
    if not knobs.features & BURST or found[KIND_DECODE] == 0:
        return 0, 0.0
    if found[KIND_PROMPT] + found[KIND_ASIDE] == 0:
        return 0, 0.0
    began = last = np.int64(tick.now_ns)  # the oldest stream's first token, and the oldest last one
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] != KIND_DECODE:
            continue
        if state.t_first_ns[s]:
            began = min(began, state.t_first_ns[s])
        if memory.due_ns[s]:
            last = min(last, memory.due_ns[s])
    age_ms, pays = (tick.now_ns - began) / 1e6, _merging_pays(cost, memory)
    latest = began + np.int64(TOGETHER_MS * 1e6)
    tokens = 0
    while True:
        best = fewest = -1
        for s in range(memory.kind.shape[0]):
            kind = memory.kind[s]
            interactive = state.lane[s] == 0 or not knobs.features & LANES
            if kind != KIND_PROMPT and not (kind == KIND_ASIDE and interactive):
                continue
            more = state.n_tokens[s] - state.n_past[s]
            if state.t_submit_ns[s] <= latest and (best < 0 or more < fewest):
                best, fewest = s, more
        if best < 0:
            break
        ms = predict(cost, 0, found[KIND_DECODE], tokens + fewest, memory.past[KIND_PROMPT])
        most_ms = OWN_MS if pays and sent_with_all(state, best) else YOUNG_MS
        if not 0.0 < ms <= most_ms - age_ms:
            break
        found[memory.kind[best]] -= 1
        found[KIND_BURST] += 1
        memory.kind[best] = KIND_BURST
        tokens += fewest
    if tokens == 0:
        return 0, 0.0
    waited_ms = (tick.now_ns - last) / 1e6
    return tokens, max(LONG_TICKS * knobs.tick_budget_ms - waited_ms, 0.0)


@njit(**INNER)
def _merging_pays(cost, memory):
    """Whether one more stream in a tick costs less than a turn of its own."""
    n, past = memory.found[KIND_DECODE], memory.past[KIND_DECODE]
    more_ms = predict(cost, 0, n + 1, 0, past)
    return 0.0 < more_ms < memory.round_ms[0, n] + predict(cost, 0, 1, 0, past)


@njit(**INNER)
def gather_short(state, knobs, cost, memory):
    """Mark the interactive prompts ``KIND_BURST`` that one slow token of all streams pays for.

    A prompt in pieces takes several times as long, and each piece makes a token late.  Marked are
    the first in rank, up to ``AT_ONCE`` tokens, as far as one tick finishes them.  A few tokens
    would get their pieces without credit (`prompts_of`).  So half a slow token more than the least
    credit is enough for them; it bounds how often they come.  Returns as `gather` does.
    """
    found, needed = memory.found, BURST + GUARD + ERROR_BUDGET
    if found[KIND_DECODE] == 0 or found[KIND_PROMPT] + found[KIND_ASIDE] == 0:
        return 0, 0.0
    credit = poorest(state)
    if knobs.features & needed != needed or credit < 0.5 * LEAST_CREDIT:
        return 0, 0.0
    base = memory.round_ms[0, found[KIND_DECODE]]
    most_ms = max(knobs.tick_budget_ms, SLOW_ROUNDS * base)
    tokens = 0
    while base > 0.0:
        best = -1
        for s in range(memory.kind.shape[0]):
            kind = memory.kind[s]
            interactive = state.lane[s] == 0 or not knobs.features & LANES
            if kind != KIND_PROMPT and not (kind == KIND_ASIDE and interactive):
                continue
            if best < 0 or sooner(state, memory, s, best):
                best = s
        if best < 0:
            break
        more = state.n_tokens[best] - state.n_past[best]
        ms = predict(cost, 0, 0, tokens + more, memory.past[KIND_PROMPT])
        if not 0.0 < ms <= most_ms or tokens + more > (AT_ONCE if credit >= 1.0 else SHORT_PROMPT):
            break
        found[memory.kind[best]] -= 1
        found[KIND_BURST] += 1
        memory.kind[best] = KIND_BURST
        tokens += more
    return tokens, most_ms if tokens else 0.0


@njit(**INNER)
def release(memory, marked, kind):
    """What was marked is of the ticks' ``kind``, whatever was decided about the others."""
    if memory.found[marked] == 0:
        return
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == marked:
            memory.kind[s] = kind
    memory.found[kind] += memory.found[marked]
    memory.found[marked] = 0
