"""Urgency: the lane of a request that nobody has labelled.

An answer that is being read is interactive, and so is a prompt while its program has allowance.  A
program may slow the streams of others for ``OWN.most_ms`` at once, then for ``OWN.rate`` of the
time.  All programs together have the quota ``TOGETHER``.  The charge is the time that a program's
prompts add to ticks of others' streams.  Beyond the quota, they are background until their answers
begin.

This is least attained service (Nuyens and Wierman 2008), by program, with a rate of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from umaserve.jit.compiled import INNER, njit
from umaserve.wire.states import LANE_BACKGROUND, LANE_INTERACTIVE

from .base import AUTO, AUTO_SUNK, LABELLED, LANES, RUNNING, URGENCY
from .shares import ALL, account_of


class Quota(NamedTuple):
    """Ms at once by which prompts may slow streams, and the share of the time afterwards."""

    most_ms: float
    rate: float


# With a rate of 0.25 a prompt of several seconds takes 4 times as long beside one stream as alone.
OWN = Quota(1000.0, 0.4)
TOGETHER = Quota(2000.0, 0.5)


@njit(**INNER)
def judge(state, tick, knobs, memory):
    """Write the lanes of unlabelled sessions into ``state.lane``, and why into ``state.auto``."""
    if not (knobs.features & LANES and knobs.features & URGENCY):
        return
    for s in range(state.state.shape[0]):
        if state.auto[s] == LABELLED or state.state[s] != RUNNING:
            continue
        if is_background(state, tick.now_ns, memory, s):
            state.lane[s], state.auto[s] = LANE_BACKGROUND, AUTO_SUNK
        else:
            state.lane[s], state.auto[s] = LANE_INTERACTIVE, AUTO


@njit(**INNER)
def is_background(state, now_ns, memory, s):
    """Return True for a prompt that slows streams of others beyond its program's allowance."""
    if state.t_first_ns[s] != 0 or state.n_tokens[s] - state.n_past[s] <= 1:
        return False
    if not slows_others(state, s):
        return False
    everybody = memory.accounts[ALL]
    mine = memory.accounts[account_of(memory.accounts, state.program[s], now_ns)]
    _refill(everybody, now_ns, TOGETHER)
    _refill(mine, now_ns, OWN)
    return min(mine.credit_ms, everybody.credit_ms) <= 0.0


@njit(nogil=True, cache=True)
def gives_way(state, knobs, memory, s, now_ns):
    """Return True for a waiting row that nobody has labelled and that would be background."""
    if not (knobs.features & LANES and knobs.features & URGENCY) or state.auto[s] == LABELLED:
        return False
    return is_background(state, now_ns, memory, s)


@njit(**INNER)
def slows_others(state, s):
    """Whether interactive streams of other programs run beside the prompt ``s``."""
    for other in range(state.state.shape[0]):
        if state.state[other] != RUNNING or state.program[other] == state.program[s]:
            continue
        if state.lane[other] != LANE_INTERACTIVE:
            continue
        if state.n_tokens[other] - state.n_past[other] == 1:
            return True
    return False


@njit(**INNER)
def charge(state, tick, memory, plan, first, entries, ms):
    """Charge ``ms`` to the programs of the prompts ``plan.slots[first:entries]``, by their tokens.

    Only prompts that nobody has labelled and that slow others are charged.
    """
    tokens = 0
    for e in range(first, entries):
        tokens += plan.counts[e]
    for e in range(first, entries):
        s = plan.slots[e]
        if state.auto[s] == LABELLED or not slows_others(state, s):
            continue
        own = account_of(memory.accounts, state.program[s], tick.now_ns)
        part = ms * plan.counts[e] / tokens
        memory.accounts[own].credit_ms -= part
        memory.accounts[ALL].credit_ms -= part


@njit(**INNER)
def _refill(account, now_ns, quota):
    """Refill an account for the time since it was last refilled."""
    if account.since_ns == 0:
        account.credit_ms = quota.most_ms
    more_ms = quota.rate * (now_ns - account.since_ns) / 1e6
    account.credit_ms = min(account.credit_ms + more_ms, quota.most_ms)
    account.since_ns = now_ns
