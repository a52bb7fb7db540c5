"""Sequences of a draft model's context, or of the heads', and what each holds of its row's text."""

from __future__ import annotations

from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_ptr,
    call_i64_ptr_i32_i32_i32,
)
from umaserve.engine.native.status import DECODED
from umaserve.jit.compiled import INNER, njit
from umaserve.sampling.select import row_at
from umaserve.wire.states import RUNNING

from .speaker import KEPT


@njit(**INNER)
def feed(speaker, i, s, at, token, is_output):
    """Put a token into the batch, and into what its sequence holds; for heads, with its state."""
    arrays = speaker.arrays
    arrays.token[i], arrays.pos[i], arrays.seq[i] = token, at, s
    arrays.logits[i] = is_output
    speaker.held[s, at] = token
    speaker.n_held[s] = at + 1
    speaker.reading.used += 1
    if speaker.states_of and at > 0:
        copy_state(speaker.states[s, (at - 1) % KEPT], speaker.inputs[i])
    elif speaker.states_of:
        for k in range(speaker.inputs.shape[1]):
            speaker.inputs[i, k] = 0.0


@njit(**INNER)
def copy_state(source, target):
    """Copy a hidden state; an assignment of arrays would want numba's runtime."""
    for k in range(target.size):
        target[k] = source[k]


@njit(**INNER, _nrt=True)
def keep_state(speaker, s, at, address):
    """Keep the hidden state at ``address`` of the token at position ``at`` of a row."""
    row = row_at(address, speaker.states.shape[2])
    copy_state(row, speaker.states[s, at % KEPT])


@njit(**INNER)
def computed(speaker, native, n):
    """Have the first ``n`` tokens of the batch computed; False, and never again, if it fails."""
    speaker.arrays.n_tokens[0] = n
    status = call_i32_ptr_ptr(native.decode, speaker.context, speaker.batch)
    if status != DECODED:
        speaker.reading.failed = 1
        return False
    call_i64_ptr(native.synchronize, speaker.context)
    return True


@njit(nogil=True, cache=True)
def keep_common(speaker, s, whose, tokens, n):
    """Cut off what a sequence does not share with the first ``n`` of its row's ``tokens``.

    Returns how many of these it lacks.  The last one always is among them: its logits are wanted.
    ``whose``: another number for each trust domain; what one has said saves no other any time.
    """
    held = max(speaker.n_held[s], speaker.n_known[s])
    same, most = 0, min(held, n - 1)
    if speaker.whose[s] != whose:
        speaker.whose[s], most = whose, 0
    while same < most and speaker.held[s, same] == tokens[same]:
        same += 1
    speaker.n_known[s] = min(speaker.n_known[s], same)
    if same < speaker.n_held[s]:
        cut(speaker, s, same)
    return n - same


@njit(**INNER)
def cut(speaker, s, n):
    """Leave the first ``n`` tokens of a row's sequence."""
    call_i64_ptr_i32_i32_i32(speaker.forget, speaker.memory, s, n, -1)
    speaker.reading.used -= speaker.n_held[s] - n
    speaker.n_held[s] = n


@njit(**INNER)
def has_room(speaker, state, need):
    """Whether it has so many cells, if need be those of rows that do not run."""
    reading = speaker.reading
    for s in range(state.state.size):
        if reading.used + need <= reading.cells:
            return True
        if state.state[s] != RUNNING and speaker.n_held[s] > 0:
            cut(speaker, s, 0)
            speaker.n_known[s] = 0
    return reading.used + need <= reading.cells


@njit(**INNER)
def owner(columns, drafts, s):
    """Return the number of a row's trust domain, or of its request if that shares with none."""
    return drafts.domain[s] if drafts.domain[s] else columns.arrival[s]
