"""The arrays behind ``struct llama_batch``, allocated once and filled in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from umaserve.jit.compiled import INNER, njit
from umaserve.wire.table import APART, NOT_YET, REASON_LENGTH, REASON_STOP, SUSPECT

from .calls import stores_first

APART_CHUNK = 32  # prompt tokens of a tick of a row apart


class BatchArrays(NamedTuple):
    """The arrays of a Batch, in the form that compiled code takes (borrowed).

    ``token``, ``pos``, ``seq`` int32 and ``logits`` int8 are [n_batch].  ``out_slot`` and
    ``out_row`` int32[n_outputs] say which session has logits and at which index of the batch.
    ``n_tokens`` int32[1] is the struct's own field.
    """

    token: np.ndarray
    pos: np.ndarray
    seq: np.ndarray
    logits: np.ndarray
    out_slot: np.ndarray
    out_row: np.ndarray
    n_tokens: np.ndarray


class Batch:
    """A ``llama_batch`` of up to ``n_batch`` tokens, one sequence each.

    ``struct`` points into ``arrays``, which are owned here and outlive every ``llama_decode`` that
    is given it; libllama only reads them.
    """

    def __init__(self, ffi: Any, n_batch: int, n_outputs: int, *, n_embd: int = 0) -> None:
        """``n_embd``: numbers of a hidden state beside each token, in ``embd``; 0 = none."""
        self.struct = ffi.new("struct llama_batch *")
        self.address = int(ffi.cast("intptr_t", self.struct))
        self.arrays = BatchArrays(
            token=np.zeros(n_batch, np.int32),
            pos=np.zeros(n_batch, np.int32),
            seq=np.zeros(n_batch, np.int32),
            logits=np.zeros(n_batch, np.int8),
            out_slot=np.zeros(n_outputs, np.int32),
            out_row=np.zeros(n_outputs, np.int32),
            n_tokens=np.frombuffer(ffi.buffer(self.struct, 4), np.int32),
        )
        self._n_seq = np.ones(n_batch, np.int32)
        # seq_id[i] points to the list of sequences of token i: here, to one entry of ``seq``
        self._seq_ids = self.arrays.seq.ctypes.data + 4 * np.arange(n_batch, dtype=np.uintp)
        self.struct.token = ffi.cast("llama_token *", self.arrays.token.ctypes.data)
        self.embd = np.zeros((n_batch, n_embd) if n_embd else (1, 1), np.float32)
        here = self.embd.ctypes.data if n_embd else 0
        self.struct.embd = ffi.cast("float *", here)
        self.struct.pos = ffi.cast("llama_pos *", self.arrays.pos.ctypes.data)
        self.struct.n_seq_id = ffi.cast("int32_t *", self._n_seq.ctypes.data)
        self.struct.seq_id = ffi.cast("llama_seq_id **", self._seq_ids.ctypes.data)
        self.struct.logits = ffi.cast("int8_t *", self.arrays.logits.ctypes.data)

    def put_nobodys(self, n: int, n_vocab: int, seq: int = 0, at: int = 0, past: int = 0) -> None:
        """Put ``n`` tokens of nobody's text behind the first ``at``, for ticks that are measured.

        They are of positions from ``past`` on, and the last of the batch.  None wants logits.
        """
        arrays, these, positions = self.arrays, slice(at, at + n), np.arange(past, past + n)
        # different ids: a mixture of experts sends equal tokens to the same ones
        arrays.token[these] = 1 + 7919 * (positions + 31 * seq + 1) % (n_vocab - 1)
        arrays.pos[these], arrays.seq[these], arrays.logits[these] = positions, seq, 0
        arrays.n_tokens[0] = at + n


@njit(**INNER)
def stop_at_checkpoints(entries, plan, columns):
    """Let no prompt pass the token at which its state is to be saved, nor a picture."""
    for e in range(entries):
        slot = plan.slots[e]
        past = columns.n_past[slot]
        left = columns.checkpoint[slot] - past
        if 0 < left < plan.counts[e]:
            plan.counts[e] = left
        for i in range(1, plan.counts[e]):
            if columns.tokens[slot, past + i] < NOT_YET:
                plan.counts[e] = i
                break


@njit(**INNER)
def keep_shapes(entries, plan, columns):
    """Give a tick of a row apart its fixed shape; return whether this is such a tick.

    The plan's room does not count.  A prompt is computed in chunks of one size.  Generated tokens
    that are computed again have a tick each, as they had before.
    """
    slot = plan.slots[0]
    if entries != 1 or columns.isolate[slot] != APART:
        return False
    left = columns.n_prompt[slot] - columns.n_past[slot]
    plan.counts[0] = min(left, APART_CHUNK) if left > 0 else 1
    return True


@njit(**INNER)
def fill(entries, plan, columns, batch, drafts):
    """Write a plan into the batch arrays, and behind a row's own tokens those drafted for it.

    Returns (tokens in the batch, rows that want logits, how many of those were decoding before).
    Logits are asked only where a session's last known token is fed, and of drafted ones.
    """
    slots, counts = plan.slots, plan.counts
    tokens, n_past, n_tokens = columns.tokens, columns.n_past, columns.n_tokens
    n = 0
    outputs = 0
    decoding = 0
    for e in range(entries):
        slot = slots[e]
        start = n_past[slot]
        if n_tokens[slot] - start == 1:
            decoding += 1
        for i in range(counts[e]):
            batch.token[n] = tokens[slot, start + i]
            batch.pos[n] = start + i
            batch.seq[n] = columns.seq[slot]
            batch.logits[n] = 0
            n += 1
        if start + counts[e] == n_tokens[slot]:
            batch.logits[n - 1] = 1
            batch.out_slot[outputs] = slot
            batch.out_row[outputs] = n - 1
            outputs += 1
            if drafts.marks.given:
                for i in range(drafts.wanted.counts[slot]):
                    batch.token[n] = drafts.tokens[slot, i]
                    batch.pos[n] = n_tokens[slot] + i
                    batch.seq[n] = columns.seq[slot]
                    batch.logits[n] = 1
                    n += 1
    return n, outputs, decoding


@njit(nogil=True, cache=True)
def fill_up(n, width, spare, b_token, b_pos, b_seq, b_logits):
    """Add tokens of the sequence ``spare`` up to ``width``; returns how many there are then."""
    for i in range(n, width):
        b_token[i] = 0
        b_pos[i] = i - n
        b_seq[i] = spare
        b_logits[i] = 0
    return max(n, width)


@njit(**INNER)
def note_fed(entries, plan, columns, served, tick):
    """The rows of a tick's plan have its tokens in the cache now."""
    for e in range(entries):
        slot = plan.slots[e]
        columns.n_past[slot] += plan.counts[e]
        columns.in_tick[slot] = 0
        served[slot] = tick * served.shape[0] + e


@register_jitable
def to_come(columns, slot):
    """Tokens that a request may still get; 0 or less once it has its last.

    ``max_tokens`` says it alone: admission keeps it within the positions of a session.  For Python
    and compiled code; ``columns`` have ``n_tokens``, ``n_prompt`` and ``max_tokens``.
    """
    return columns.max_tokens[slot] - (columns.n_tokens[slot] - columns.n_prompt[slot])


@njit(nogil=True, cache=True)
def settle(columns, work, slots, sampled, count, now_ns, n_ended):
    """Write the tokens ``sampled`` of ``count`` rows into the session table.

    Every row gets its token, or ends.  Rows that end are listed in ``work.ended`` behind the
    ``n_ended`` that it has; returns how many there are then.  The caller marks them DONE.  A token
    goes in before the count that publishes it, and NOT_YET behind it; one that ends its row is not
    counted.  Rows that have NO_NUMBERS or NO_CHOICE for a token get none.
    """
    n_tokens, ended, reason = columns.n_tokens, work.ended, columns.reason
    for i in range(count):
        slot = slots[i]
        token = sampled[i]
        if token < 0:
            continue
        at = n_tokens[slot]
        columns.tokens[slot, at] = token
        if at + 1 < columns.tokens.shape[1]:
            columns.tokens[slot, at + 1] = NOT_YET
        if work.is_eog[token]:
            reason[slot] = REASON_STOP
            ended[n_ended] = slot
            n_ended += 1
            continue
        columns.token_ns[slot, at] = now_ns
        if columns.t_first_ns[slot] == 0:
            columns.t_first_ns[slot] = now_ns
        columns.t_last_ns[slot] = now_ns
        stores_first()
        n_tokens[slot] = at + 1
        if columns.isolate[slot] == SUSPECT and at + 1 - work.resumed_at[slot] >= 2:
            columns.isolate[slot] = 0
        if to_come(columns, slot) <= 0:
            reason[slot] = REASON_LENGTH
            ended[n_ended] = slot
            n_ended += 1
    return n_ended
