"""Shares: programs that ask for all get as much each, whatever the number of their requests.

In a round of the streams each program has as many turns as the one that has fewest streams.  So
beside a program with one stream, one with eight has one turn, which these take one after another.
The first one's stream then has the pace that it has beside a single other one.  Its programs'
weights multiply turns.  Streams that have no turn ride as decoders of the background do, where
that costs the others no more than the cap: what one program cannot use goes to the next.

Decoders of the background have turns in the same way where they are not all merged.

This is max-min fairness (Bertsekas and Gallager 1992, 6.5.2) in whole rows.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .base import KIND_BACK_DECODE, KIND_DECODE, LANES, SHARES
from .fairness import longer_ago

LAST = 1 << 60  # is added to the turn of who has none
SURE = 1e-9  # weights are no whole numbers


@njit(**INNER)
def share(state, knobs, memory):
    """Choose the decoders that have a turn in this round; runs where ``memory.kind`` is new.

    Interactive ones that have none become ``KIND_BACK_DECODE``, background ones go last.  A turn
    goes on from the program's latest ones: ``memory.turn`` and ``due_ns`` of who has it are
    theirs.  ``state.rounds`` says how many rounds lie between two tokens of a stream.
    """
    memory.kept.shared = 0
    if not (knobs.features & LANES and knobs.features & SHARES):
        return
    for kind in (KIND_DECODE, KIND_BACK_DECODE):
        if _are_of_several(state, memory, kind):
            _deal(state, memory, kind, _turns_by_weight(state, memory, kind))


@njit(**INNER)
def _are_of_several(state, memory, kind):
    """Whether decoders of this kind are of more than one program."""
    first = -1
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] != kind:
            continue
        if first < 0:
            first = s
        elif state.program[s] != state.program[first]:
            return True
    return False


@njit(**INNER)
def weight_of(state, s):
    """The weight of a session's program; a row that was told none has 1."""
    return state.weight[s] if state.weight[s] > 0.0 else 1.0


@njit(**INNER)
def _turns_by_weight(state, memory, kind):
    """Turns in a round of a program of weight 1: all that the one with fewest streams can use."""
    least = -1.0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] != kind:
            continue
        count = 0
        for other in range(memory.kind.shape[0]):
            if memory.kind[other] == kind and state.program[other] == state.program[s]:
                count += 1
        turns = count / weight_of(state, s)
        if least < 0.0 or turns < least:
            least = turns
    return least


@njit(**INNER)
def _deal(state, memory, kind, turns):
    """Give each program its turns, and put off what is beyond them."""
    for first in range(memory.kind.shape[0]):
        if memory.kind[first] != kind or not _is_first(state, memory, kind, first):
            continue
        count = _list(state, memory, kind, first)
        own = max(int(turns * weight_of(state, first) + SURE), 1)
        if own >= count:
            continue
        for i in range(count):
            s = memory.order[i]
            if i < own:
                latest = memory.order[count - own + i]
                memory.turn[s], memory.due_ns[s] = memory.turn[latest], memory.due_ns[latest]
            elif kind == KIND_DECODE:
                _move(state, memory, s, KIND_BACK_DECODE)
            else:
                memory.turn[s] += LAST
            if kind == KIND_DECODE:
                state.rounds[s] = count / own
                memory.kept.shared = 1


@njit(**INNER)
def _is_first(state, memory, kind, s):
    """Whether no row before this one is of the same program and kind."""
    for before in range(s):
        if memory.kind[before] == kind and state.program[before] == state.program[s]:
            return False
    return True


@njit(**INNER)
def _list(state, memory, kind, first):
    """Fill ``memory.order`` with the program's decoders, served longest ago first; how many."""
    count = 0
    for s in range(first, memory.kind.shape[0]):
        if memory.kind[s] != kind or state.program[s] != state.program[first]:
            continue
        i = count
        while i > 0 and longer_ago(state, memory, s, memory.order[i - 1]):
            memory.order[i] = memory.order[i - 1]
            i -= 1
        memory.order[i] = s
        count += 1
    return count


@njit(**INNER)
def _move(state, memory, s, kind):
    """Count a decoder as one of another kind."""
    for sign, of in ((-1, memory.kind[s]), (1, kind)):
        memory.found[of] += sign
        memory.past[of] += sign * state.n_past[s]
    memory.kind[s] = kind
