"""Prompt chunking: whose prompt tokens fill the room that a tick has.

First-token-first chunked prefill (Sarathi-Serve, Agrawal et al. 2024): prompts that can be finished
with the room go first, since each of them makes a session decode. The oldest keeps a quarter, so
that short ones never starve it.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

MIN_CHUNK = 8  # prompt tokens of a chunk at least: below this, progress costs too much


@njit(**INNER)
def waiting_tokens(state, memory, kind):
    """Prompt tokens of a kind that are not computed yet."""
    total = 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == kind:
            total += state.n_tokens[s] - state.n_past[s]
    return total


@njit(**INNER)
def add_prompts(state, memory, plan, entries, kind, room):
    """Distribute ``room`` tokens over the prompts of a kind; returns the number of entries."""
    n_slots = memory.kind.shape[0]
    oldest = -1
    for s in range(n_slots):
        if memory.kind[s] == kind and (oldest < 0 or state.arrival[s] < state.arrival[oldest]):
            oldest = s
    if oldest < 0 or room <= 0:
        return entries
    first = entries
    reserved = min(max(room // 4, 1), state.n_tokens[oldest] - state.n_past[oldest])
    plan.slots[entries] = oldest
    plan.counts[entries] = reserved
    entries += 1
    room -= reserved
    while room > 0:
        best = at = -1
        best_fits = False
        for s in range(n_slots):
            if memory.kind[s] != kind:
                continue
            listed = -1
            for i in range(first, entries):
                if plan.slots[i] == s:
                    listed = i
                    break
            taken = plan.counts[listed] if listed >= 0 else 0
            need = state.n_tokens[s] - state.n_past[s] - taken
            if need == 0 or (taken > 0 and s != oldest):
                continue
            fits = need <= room
            if best < 0 or (fits and not best_fits):
                better = True
            elif fits != best_fits:
                better = False
            else:
                better = state.arrival[s] < state.arrival[best]
            if better:
                best, at, best_fits = s, listed, fits
        if best < 0:
            break
        if at < 0:
            at = entries
            plan.slots[at] = best
            plan.counts[at] = 0
            entries += 1
        take = min(room, state.n_tokens[best] - state.n_past[best] - plan.counts[at])
        plan.counts[at] += take
        room -= take
    return entries
