"""The session table: numpy columns in memory that front and engine share.

One row is one admitted request.  The engine writes every column; the front only reads, and asks for
changes through ``umaserve.wire.messages``.  The mapping comes from an unlinked file whose
descriptor the engine inherits, so no kill leaves anything behind, on any system.

How a token gets across: the engine stores the id in ``tokens[slot, n_tokens]``, then raises
``n_tokens`` and writes one byte to the wake pipe.  The front, woken, reads up to ``n_tokens``.
Fences keep the id in front of the count, and what a row holds in front of its state, on both sides
(``native.stores_first``, ``umaserve.wire.memory_order``).

The rows outlive a dead engine.  What was published is read from the old mapping.  The request goes
to the next engine with those tokens, and nothing is lost or repeated.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import numpy as np

from umaserve.wire.header import ABORT_AT, HEADER_BYTES, TICK_RING, TICK_ROW, AbortWords, Header
from umaserve.wire.header import BUSY_DECODE as BUSY_DECODE
from umaserve.wire.header import BUSY_IDLE as BUSY_IDLE
from umaserve.wire.states import *  # noqa: F403 - states of rows are words of the table
from umaserve.wire.states import WAITING

# reason of a row that is DONE or FULL
REASON_NONE = 0
REASON_STOP = 1  # end-of-generation token
REASON_LENGTH = 2  # max_tokens or the context is full
REASON_CANCEL = 3
REASON_ERROR = 4

NOT_YET = -1  # instead of a token behind the last one of a row

IN_TOKENIZER = 2  # of the column ``in_tick``

MAX_TOP_LOGPROBS = 20

# columns, by dtype and shape: "" = one per slot, "ctx" = one per position, "top" = 20 per position
I4 = Annotated[np.ndarray, "i4", ""]
I8 = Annotated[np.ndarray, "i8", ""]
F8 = Annotated[np.ndarray, "f8", ""]


@dataclass(frozen=True)
class TableSpec:
    """Sizes that both processes must agree on."""

    n_slots: int
    n_ctx: int  # positions kept per row: the context size + 1

    def layout(self) -> tuple[dict[str, tuple[int, np.dtype, tuple[int, ...]]], int]:
        """Offset, dtype and shape of every column, and the size of the mapping in bytes."""
        offset = HEADER_BYTES + TICK_RING * TICK_ROW.itemsize
        columns = {}
        for name, column in get_type_hints(SessionTable, include_extras=True).items():
            code, kind = column.__metadata__
            dtype = np.dtype(code)
            shape: tuple[int, ...] = (self.n_slots,)
            if kind in ("ctx", "top"):
                shape += (self.n_ctx,)
            if kind == "top":
                shape += (MAX_TOP_LOGPROBS,)
            offset = -(-offset // 64) * 64
            columns[name] = (offset, dtype, shape)
            offset += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        return columns, size


def shared_file(size: int) -> int:
    """Descriptor of an unlinked, sparse, zero-filled file of ``size`` bytes.

    On Linux it lies in memory (memfd_create(2)), but not in ``/dev/shm``.  That is often small in a
    container, and a page that it cannot give is a SIGBUS.  The caller owns the descriptor.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("umaserve")
        os.ftruncate(fd, size)
        return fd
    with tempfile.TemporaryFile(prefix="umaserve-") as file:
        os.ftruncate(file.fileno(), size)
        return os.dup(file.fileno())


class SessionTable:
    """Views of the mapping behind descriptor ``fd``.

    Every column is an attribute: ``table.state`` is ``int32[n_slots]``, ``table.tokens`` is
    ``int32[n_slots, n_ctx]`` and so on.  ``table.header`` and ``table.abort`` have words with
    names, ``table.ticks`` is ``TICK_ROW[TICK_RING]`` (`umaserve.wire.header`).  All
    borrow the mapping; it is unmapped when the last of them is gone.  ``quick_…`` are some columns
    once more, as memoryviews: one item of these becomes a Python number in a third of the time.
    """

    serial: I8  # request in this row; 0 = none
    state: I4
    reason: I4
    lane: I4
    seq: I4  # KV sequence id, -1 = none
    # of n_tokens, those not generated; what a shift drops is taken from it, so it may be negative
    n_prompt: I4
    n_tokens: I4  # prompt + generated, as stored in tokens[slot]
    n_past: I4  # of those, how many are in the KV cache
    more_cells: I4  # that its pictures take beyond their positions
    cached: I4  # tokens of the prompt that were known, and not computed again
    checkpoint: I4  # where a chunk of its prompt ends, to save what is there; 0 = none
    max_tokens: I4
    shifts: I4  # of its context, so far; -1 = it ends where that is full
    in_tick: I4  # 1 while part of a llama_decode; IN_TOKENIZER while it is tokenised
    isolate: I4  # SUSPECT or APART
    t_submit_ns: I8  # monotonic; arrival of the request
    t_wait_ns: I8  # monotonic; since when it waits for KV cells: it came, or was parked
    t_admit_ns: I8  # first given a sequence
    t_first_ns: I8  # first token published
    t_last_ns: I8
    arrival: I8  # order of admission, for round-robin and preemption
    auto: I4  # LABELLED, or what the policy has decided about the lane
    program: I4  # whose request it is: equal numbers, the same program
    weight: F8  # of that program's share
    rounds: F8  # of the streams, between two tokens of this one: its baseline is longer
    tokens: Annotated[np.ndarray, "i4", "ctx"]
    cap: F8  # latency cap of this session, times the baseline; 0 = the daemon's
    target_ttft_ms: F8  # 0 = none
    target_tbt_ms: F8  # 0 = none
    credit: F8  # slow tokens that the guard may still spend on this session
    speculate: I4  # 1: tokens may be drafted for it
    drafted: I4  # tokens that were, so far
    accepted: I4  # of these, those that it got
    token_ns: Annotated[np.ndarray, "i8", "ctx"]  # monotonic; when the token was published
    logprob: Annotated[np.ndarray, "f4", "ctx"]
    top_ids: Annotated[np.ndarray, "i4", "top"]  # -1 = unused
    top_logprobs: Annotated[np.ndarray, "f4", "top"]

    def __init__(self, spec: TableSpec, fd: int) -> None:
        columns, size = spec.layout()
        if os.fstat(fd).st_size < size:
            raise ValueError("the session table's file is smaller than its layout needs")
        self.spec = spec
        mapping = mmap.mmap(fd, size)
        self.header = Header(mapping)
        self.abort = AbortWords(mapping, ABORT_AT)
        self.ticks = np.frombuffer(mapping, TICK_ROW, TICK_RING, HEADER_BYTES)
        for name, (offset, dtype, shape) in columns.items():
            count = int(np.prod(shape, dtype=np.int64))
            view = np.frombuffer(mapping, dtype, count, offset).reshape(shape)
            setattr(self, name, view)
        self.quick_serial, self.quick_state = self.serial.data, self.state.data
        self.quick_n_tokens = self.n_tokens.data
        self.quick_tokens, self.quick_token_ns = self.tokens.data, self.token_ns.data

    def is_parked(self, slot: int) -> bool:
        """Whether this request had KV cells, gave them up and waits."""
        return bool(self.state[slot] == WAITING and self.t_admit_ns[slot])

    def parked(self) -> list[int]:
        """Slots of the requests that are parked."""
        return np.flatnonzero((self.state == WAITING) & (self.t_admit_ns != 0)).tolist()

    @classmethod
    def create(cls, spec: TableSpec) -> tuple[SessionTable, int]:
        """A fresh table and the descriptor that an engine has to inherit (caller closes it)."""
        _, size = spec.layout()
        fd = shared_file(size)
        table = cls(spec, fd)
        table.seq[:] = -1
        return table, fd


PIECE_BYTES = 64 * 1024 * 1024  # sparse; a vocabulary of 256k tokens uses about 4 MiB


class PieceTable:
    """Texts of tokens as bytes: ``offsets`` int32[2 n_vocab + 1] into the data behind them.

    The engine writes it once, from ``llama_token_to_piece``, into a second shared mapping; the
    front detokenises from it without libllama.  Control tokens are empty.  The second half is about
    how the vocabulary spells tokens that have no text (`hidden`).
    """

    def __init__(self, fd: int, n_vocab: int) -> None:
        if (2 * n_vocab + 1) * 4 > PIECE_BYTES:
            raise ValueError(f"the vocabulary's texts need more than {PIECE_BYTES} bytes")
        self._mapping = mmap.mmap(fd, PIECE_BYTES)
        self._offsets = np.frombuffer(self._mapping, np.int32, 2 * n_vocab + 1)
        self._at, self._start = self._offsets.data, self._offsets.nbytes
        self.n_vocab = n_vocab

    def write(self, *tables: tuple[np.ndarray, np.ndarray]) -> None:
        """Engine side: store texts and spellings, each as offsets int32[n_vocab + 1] and uint8."""
        (at, _), (hidden_at, _) = tables
        data = b"".join(part.tobytes() for _, part in tables)
        end = self._start + len(data)
        if end > PIECE_BYTES:
            raise ValueError(f"the vocabulary's texts need {end} of {PIECE_BYTES} bytes")
        self._offsets[: self.n_vocab] = at[:-1]
        self._offsets[self.n_vocab :] = hidden_at + at[-1]
        self._mapping[self._start : end] = data

    def piece(self, token: int) -> bytes:
        """Bytes of one token; empty for an id outside the vocabulary."""
        return self._bytes(token) if 0 <= token < self.n_vocab else b""

    def hidden(self, token: int) -> bytes:
        """How a token is spelled that has no text; empty for any other."""
        return self._bytes(self.n_vocab + token) if 0 <= token < self.n_vocab else b""

    def _bytes(self, entry: int) -> bytes:
        return self._mapping[self._start + self._at[entry] : self._start + self._at[entry + 1]]

    def names(self) -> tuple[str, ...]:
        """How all tokens are spelled that have no text, in the order of their ids."""
        found = np.flatnonzero(np.diff(self._offsets[self.n_vocab :])).tolist()
        return tuple(self.hidden(token).decode("utf-8", "replace") for token in found)

    def spelled(self, token: int) -> bytes:
        """Text of a token, or how it is spelled where it has none."""
        return self.piece(token) or self.hidden(token)
