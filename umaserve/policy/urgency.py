"""Urgency: the lane of a request that nobody has labelled.

Short prompts and answers that are being read are interactive, long prompts beside them are not.
Long is relative.  A program may ask for prompts at the expense of everybody's streams.  At once for
the time that a stream takes for ``ALLOWANCE`` tokens, from then on for ``REFILL`` of the time.  All
programs together may ask for twice as much.  A prompt that costs more is background work until its
answer begins.  A short prompt costs nothing where all that it holds up is its own program's.  So a
flood of long prompts sinks, whoever sends it, and a person's question does not.  Nor does what a
program that is alone sends together: all of it belongs to the same answer.

An answer that does not stream is not read as it comes, so that a pause in it costs nobody anything.
It bears ``LOOSE`` times its time for a token while a prompt waits whose answer will be read.  So it
never has less than half of its pace by that prompt.  Prompts of a program that is alone do not
sink beside such answers.

This is least attained service (Nuyens and Wierman 2008), by program, with the cost known before.
"""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.wire.states import LANE_BACKGROUND, LANE_INTERACTIVE

from .accounts import ALL, account_of
from .base import AUTO, AUTO_PAID, AUTO_SUNK, LABELLED, LANES, RUNNING, URGENCY
from .cost.model import predict

ALLOWANCE = 16.0  # tokens of a stream
REFILL = 0.0025
SENT_TOGETHER_MS = 250.0  # what a program sends within so much belongs together
LOOSE = 2.0  # latency cap of an answer that is not read as it comes, while others are waited for


@njit(**INNER)
def judge(state, tick, knobs, cost, memory):
    """Write the lanes of unlabelled sessions into ``state.lane``, and why into ``state.auto``."""
    if not (knobs.features & LANES and knobs.features & URGENCY):
        return
    for s in range(state.state.shape[0]):
        if state.auto[s] == LABELLED or state.state[s] != RUNNING:
            continue
        left = state.n_tokens[s] - state.n_past[s]
        if state.t_first_ns[s] != 0 or left <= 1 or state.auto[s] == AUTO_PAID:
            state.lane[s] = LANE_INTERACTIVE
            if state.auto[s] != AUTO_PAID:
                state.auto[s] = AUTO
            continue
        streams, prompts, past = _others(state, s)
        if streams + prompts == 0:
            state.lane[s], state.auto[s] = LANE_INTERACTIVE, AUTO
            continue
        token_ms = predict(cost, 0, max(streams, 1), 0, past)
        prompt_ms = predict(cost, 0, 0, left, state.n_past[s] + 0.5 * left)
        own = account_of(memory.accounts, state.program[s], tick.now_ns)
        everybody, mine = memory.accounts[ALL], memory.accounts[own]
        _refill(everybody, tick.now_ns, 2.0, token_ms)
        _refill(mine, tick.now_ns, 1.0, token_ms)
        credit_ms = min(mine.credit_ms, everybody.credit_ms)
        is_free = not _others_pay(state, s)
        if is_free and sent_with_all(state, s):
            state.lane[s], state.auto[s] = LANE_INTERACTIVE, AUTO
            continue
        is_affordable = is_free or prompt_ms <= credit_ms or token_ms <= 0.0
        if is_affordable and _is_short(cost, state.n_tokens[s] - state.cached[s], token_ms):
            if not is_free:
                everybody.credit_ms -= prompt_ms
                mine.credit_ms -= prompt_ms
            state.lane[s], state.auto[s] = LANE_INTERACTIVE, AUTO_PAID
        else:
            state.lane[s], state.auto[s] = LANE_BACKGROUND, AUTO_SUNK
    _loosen(state, knobs)


@njit(**INNER)
def _loosen(state, knobs):
    """Answers that are not read as they come bear more while a prompt waits whose answer will be
    read."""
    cap = 0.0
    for s in range(state.state.shape[0]):
        if state.state[s] != RUNNING or state.unread[s]:
            continue
        if state.auto[s] == LABELLED and state.lane[s] != LANE_INTERACTIVE:
            continue
        if state.n_tokens[s] - state.n_past[s] > 1:
            cap = max(LOOSE, knobs.latency_cap)
    for s in range(state.state.shape[0]):
        if state.unread[s]:
            state.cap[s] = 0.0 if state.auto[s] == LABELLED else cap


@njit(**INNER)
def _is_alone(state, s):
    """Whether no other program has anything here."""
    for other in range(state.state.shape[0]):
        if state.state[other] == RUNNING and state.program[other] != state.program[s]:
            return False
    return True


@njit(**INNER)
def sent_with_all(state, s):
    """Whether all that is interactive is the program's of ``s``, and was sent when it was."""
    for other in range(state.state.shape[0]):
        if state.state[other] != RUNNING or state.lane[other] != LANE_INTERACTIVE:
            continue
        apart_ms = abs(state.t_submit_ns[other] - state.t_submit_ns[s]) / 1e6
        if state.program[other] != state.program[s] or apart_ms > SENT_TOGETHER_MS:
            return False
    return True


@njit(**INNER)
def _others_pay(state, s):
    """Whether a prompt is computed at the expense of another program's streams or prompts."""
    for other in range(state.state.shape[0]):
        if state.state[other] != RUNNING or state.program[other] == state.program[s]:
            continue
        if state.auto[other] == AUTO_SUNK or state.lane[other] != LANE_INTERACTIVE:
            continue
        return True
    return False


@njit(**INNER)
def _is_short(cost, tokens, token_ms):
    return token_ms <= 0.0 or predict(cost, 0, 0, tokens, 0.5 * tokens) <= ALLOWANCE * token_ms


@njit(nogil=True, cache=True)
def is_long(state, knobs, cost, s):
    """Whether a session that nobody has labelled would sink beside those that run."""
    if not (knobs.features & LANES and knobs.features & URGENCY):
        return False
    streams, prompts, past = _others(state, s)
    if state.auto[s] == LABELLED or state.t_first_ns[s] != 0 or streams + prompts == 0:
        return False
    whole = state.n_tokens[s] - state.cached[s]
    return not _is_short(cost, whole, predict(cost, 0, max(streams, 1), 0, past))


@njit(**INNER)
def _others(state, s):
    """Whom the row ``s`` has to mind: streams, prompts that go before long ones, and the KV cells
    that a stream attends to."""
    streams = prompts = 0
    past = 0.0
    minds_none = state.unread[s] != 0 and _is_alone(state, s)
    for other in range(state.state.shape[0]):
        if state.state[other] != RUNNING:
            continue
        if minds_none and state.unread[other] and state.t_first_ns[other] != 0:
            continue
        if state.auto[other] == LABELLED and state.lane[other] != LANE_INTERACTIVE:
            continue
        if state.n_tokens[other] - state.n_past[other] == 1:
            streams += 1
            past += state.n_past[other]
        elif state.auto[other] in (LABELLED, AUTO_PAID) or state.t_first_ns[other] != 0:
            prompts += 1
    return streams, prompts, past / max(streams, 1)


@njit(**INNER)
def _refill(account, now_ns, times, token_ms):
    """What may be spent: ``times`` what one program may."""
    most_ms = times * ALLOWANCE * token_ms
    if account.since_ns == 0:
        account.credit_ms = most_ms
    more_ms = times * REFILL * (now_ns - account.since_ns) / 1e6
    account.credit_ms = min(account.credit_ms + more_ms, most_ms)
    account.since_ns = now_ns
