"""Shares: programs that ask for all get as much each, whatever the number of their requests.

In a round of the streams each program has as many turns as the program that has fewest streams.  So
beside a program with one stream, a program with eight has one turn, and its streams take it one
after another.  The single stream then has the pace that it has beside one other stream.  A
program's weight multiplies its turns.  Streams that have no turn ride as decoders of the background
do, where that costs the others no more than the cap.  So what one program cannot use goes to the
next.

Decoders of the background have turns in the same way where they are not all merged.

Of prompts of one lane those go first whose program has had least of late, in tokens by weight.

This is max-min fairness (Bertsekas and Gallager 1992, 6.5.2) in whole rows, and least attained
service (Nuyens and Wierman 2008) by program for prompts.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .base import (
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_PROMPT,
    LANES,
    RUNNING,
    SHARES,
)
from .fairness import longer_ago

ALL = 0  # the account of all programs together
LAST = 1 << 60  # is added to the turn of who has none
SURE = 1e-9  # weights are no whole numbers
QUANTUM = 512.0  # prompt tokens by which programs differ before another one goes first
MOST = 16.0 * QUANTUM  # that is remembered: who had the machine alone waits no longer for it


@njit(**INNER)
def share(state, tick, knobs, memory):
    """Choose the decoders that have a turn in this round; runs where ``memory.kind`` is new.

    Interactive ones that have none become ``KIND_BACK_DECODE``, background ones go last.  A turn
    goes on from the program's latest ones: ``memory.turn`` and ``due_ns`` of who has it are
    theirs.  ``state.rounds`` says how many rounds lie between two tokens of a stream.
    """
    memory.kept.shared = 0
    memory.ahead[:] = 0
    if not (knobs.features & LANES and knobs.features & SHARES):
        return
    _order_prompts(state, tick, memory)
    for kind in (KIND_DECODE, KIND_BACK_DECODE):
        if _are_of_several(state, memory, kind):
            _deal(state, memory, kind, _turns_by_weight(state, memory, kind))


@njit(**INNER)
def _order_prompts(state, tick, memory):
    """Count what was computed of prompts since the last tick, and say whose go first."""
    accounts, least, first, several = memory.accounts, MOST, -1, False
    for s in range(memory.kind.shape[0]):
        if _has_prompt(memory, s):
            first = s if first < 0 else first
            several = several or state.program[s] != state.program[first]
    for s in range(memory.kind.shape[0]):
        left = (state.n_tokens[s] - state.n_past[s]) / weight_of(state, s)
        stays = state.state[s] == RUNNING and memory.whose[s] == state.arrival[s]
        had = memory.left[s] - (left if stays else 0.0)
        if several and memory.whose[s] > 0 and had > 0.0:
            account = accounts[account_of(accounts, memory.owner[s], tick.now_ns)]
            account.had = min(account.had + had, MOST)
        has_prompt = _has_prompt(memory, s)
        if has_prompt and memory.whose[s] != state.arrival[s]:
            memory.whole[s] = state.n_tokens[s] - state.n_past[s]
        memory.whose[s] = state.arrival[s] if has_prompt else 0
        memory.owner[s], memory.left[s] = state.program[s], left
    if not several:
        return
    for s in range(memory.kind.shape[0]):
        if memory.whose[s] > 0:
            at = account_of(accounts, state.program[s], tick.now_ns)
            least = min(least, accounts[at].had)
    for i in range(accounts.shape[0]):
        accounts[i].had = max(accounts[i].had - least, 0.0)
    for s in range(memory.kind.shape[0]):
        if memory.whose[s] > 0:
            at = account_of(accounts, state.program[s], tick.now_ns)
            memory.ahead[s] = int(accounts[at].had / QUANTUM)


@njit(**INNER)
def _has_prompt(memory, s):
    return memory.kind[s] in (KIND_PROMPT, KIND_BACK_PROMPT, KIND_ASIDE)


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
        if memory.kind[first] != kind or not is_first(state, memory, kind, first):
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
def is_first(state, memory, kind, s):
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


@njit(**INNER)
def account_of(accounts, program, now_ns):
    """The account of a program; a new one takes the place of the one that was used least lately."""
    oldest = ALL + 1
    for i in range(ALL + 1, accounts.shape[0]):
        if accounts[i].seen_ns > 0 and accounts[i].program == program:
            accounts[i].seen_ns = now_ns
            return i
        if accounts[i].seen_ns < accounts[oldest].seen_ns:
            oldest = i
    accounts[oldest].program, accounts[oldest].seen_ns = program, now_ns
    accounts[oldest].since_ns, accounts[oldest].had = 0, 0.0
    return oldest
