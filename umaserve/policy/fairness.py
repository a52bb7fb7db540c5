"""Fairness: which of the decoders a tick serves, and how long a kind of work has waited."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import AGEING, BACK_WAIT_MS


@njit(**INNER)
def add_decoders(state, memory, plan, entries, kind, most):
    """Add up to ``most`` decoders of a kind, those served longest ago first.

    Returns the number of entries.  Round-robin follows: who was served goes to the end.
    """
    n_slots = memory.kind.shape[0]
    found = memory.found[kind]
    if found <= most and not memory.kept.shared:
        for s in range(n_slots):
            if memory.kind[s] == kind:
                plan.slots[entries] = s
                plan.counts[entries] = 1
                entries += 1
        return entries
    first, most = entries, min(found, most)
    while entries - first < most:
        best = -1
        for s in range(n_slots):
            if memory.kind[s] != kind or _listed(plan, first, entries, s):
                continue
            if best < 0 or longer_ago(state, memory, s, best):
                best = s
        plan.slots[entries] = best
        plan.counts[entries] = 1
        entries += 1
    return entries


@njit(**INNER)
def _listed(plan, first, entries, s):
    for i in range(first, entries):  # noqa: SIM110 (numba has no any() over a generator)
        if plan.slots[i] == s:
            return True
    return False


@njit(**INNER)
def longer_ago(state, memory, a, b):
    """Whether a decoder goes before another one, since its turn was longer ago."""
    # a session's first token goes before anybody's next one
    if (memory.due_ns[a] == 0) != (memory.due_ns[b] == 0):
        return memory.due_ns[a] == 0
    if memory.turn[a] != memory.turn[b]:
        return memory.turn[a] < memory.turn[b]
    return state.arrival[a] < state.arrival[b]


@njit(**INNER)
def waited_ms(tick, since, what):
    """For how long nobody of a kind (``SINCE_*``) was served; it is counted from the first call."""
    if since[what] == 0:
        since[what] = tick.now_ns
    return (tick.now_ns - since[what]) / 1e6


@njit(**INNER)
def is_late(tick, knobs, since, what):
    """Whether background of a kind has waited so long that it gets its smallest slice."""
    return knobs.features & AGEING != 0 and waited_ms(tick, since, what) > BACK_WAIT_MS
