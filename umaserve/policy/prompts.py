"""Prompt chunking: whose prompt tokens fill the room that a tick has.

Of one lane the shortest remaining prompt goes first, so that each ends as soon as it can (SRPT,
Schrage and Miller 1966).  What a prompt has waited makes it shorter in this order, so that no
prompt is passed for ever.  Once it has waited four times what it takes, it goes before whatever
comes.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .base import KIND_ASIDE, KIND_BACK_PROMPT, KIND_PROMPT
from .cost.prediction import predict

MIN_CHUNK = 8  # prompt tokens of a chunk at least: below this, progress costs too much
AGED = 0.25  # ms that a prompt counts as shorter for each ms that it has waited


@njit(**INNER)
def rank_prompts(state, tick, cost, memory):
    """Fill ``memory.rank``: the least goes first."""
    found = memory.found
    if found[KIND_PROMPT] + found[KIND_BACK_PROMPT] + found[KIND_ASIDE] < 2:
        return
    for s in range(memory.kind.shape[0]):
        kind = memory.kind[s]
        if kind != KIND_PROMPT and kind != KIND_BACK_PROMPT and kind != KIND_ASIDE:
            continue
        left = state.n_tokens[s] - state.n_past[s]
        ms = predict(cost, 0, 0, left, memory.past[kind])
        waited = (tick.now_ns - state.t_submit_ns[s]) / 1e6
        memory.rank[s] = (ms if ms > 0.0 else float(left)) - AGED * waited


@njit(**INNER)
def sooner(state, memory, a, b):
    """Whether prompt ``a`` goes before prompt ``b`` of its lane; of two alike the older one.

    A program that has had less goes first (`umaserve.policy.shares`).
    """
    if memory.ahead[a] != memory.ahead[b]:
        return memory.ahead[a] < memory.ahead[b]
    if memory.rank[a] != memory.rank[b]:
        return memory.rank[a] < memory.rank[b]
    if state.arrival[a] != state.arrival[b]:
        return state.arrival[a] < state.arrival[b]
    return a < b


@njit(**INNER)
def prompt_after(state, memory, kind, before):
    """The prompt of a kind that goes next after slot ``before`` (-1: the first); -1 = none does."""
    best = -1
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] != kind or before >= 0 and not sooner(state, memory, before, s):
            continue
        if best < 0 or sooner(state, memory, s, best):
            best = s
    return best


@njit(**INNER)
def waiting_tokens(state, memory, kind):
    """Prompt tokens of a kind that are not computed yet."""
    total = 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == kind:
            total += state.n_tokens[s] - state.n_past[s]
    return total


@njit(**INNER)
def tokens_together(state, cost, memory, room):
    """How many tokens of interactive prompts a tick of them alone should have, up to ``room``.

    They are the first prompt's, and the next prompt's as long as all of them get their first tokens
    sooner so, in the mean.  The prompts before wait for it, and whatever is behind gains.
    """
    past, behind = memory.past[KIND_PROMPT], memory.found[KIND_PROMPT] - 1
    s = prompt_after(state, memory, KIND_PROMPT, -1)
    if s < 0:
        return 0
    tokens, first = min(state.n_tokens[s] - state.n_past[s], room), 1
    while behind > 0 and tokens < room:
        s = prompt_after(state, memory, KIND_PROMPT, s)
        more = min(state.n_tokens[s] - state.n_past[s], room - tokens)
        before = predict(cost, 0, 0, tokens, past)
        both, own = predict(cost, 0, 0, tokens + more, past), predict(cost, 0, 0, more, past)
        if first * (both - before) > behind * (before + own - both):
            break
        tokens, first, behind = tokens + more, first + 1, behind - 1
    return tokens


@njit(**INNER)
def add_prompts(state, memory, plan, entries, kind, room):
    """Distribute ``room`` tokens over the prompts of a kind; returns the number of entries."""
    s = -1
    while room > 0:
        s = prompt_after(state, memory, kind, s)
        if s < 0:
            break
        take = min(room, state.n_tokens[s] - state.n_past[s])
        plan.slots[entries] = s
        plan.counts[entries] = take
        entries += 1
        room -= take
    return entries
