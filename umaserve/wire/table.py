"""The session table: numpy columns in memory that front and engine share.

One row is one admitted request.  The engine writes every column; the front only reads, and asks for
changes through ``umaserve.wire.messages``.  The mapping comes from an unlinked file whose
descriptor the engine inherits, so no kill leaves anything behind, on any system.

How a token gets across: the engine stores the id in ``tokens[slot, n_tokens]``, then raises
``n_tokens`` and writes one byte to the wake pipe.  The front, woken, reads up to ``n_tokens``.
Fences keep the id in front of the count, and what a row holds in front of its state, on both sides
(``native.stores_first``, ``umaserve.wire.memory_order``).

The rows outlive a dead engine: what was published is read from the old mapping, the request goes to
the next engine with those tokens, and nothing is lost or repeated.

Long: the layout of one block of memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from umaserve.wire.states import DONE as DONE
from umaserve.wire.states import FREE as FREE
from umaserve.wire.states import RUNNING as RUNNING
from umaserve.wire.states import WAITING as WAITING

# reason of a DONE row
REASON_NONE = 0
REASON_STOP = 1  # end-of-generation token
REASON_LENGTH = 2  # max_tokens or the context is full
REASON_CANCEL = 3
REASON_ERROR = 4

NOT_YET = -1  # instead of a token behind the last one of a row

IN_TOKENIZER = 2  # of the column ``in_tick``

MAX_TOP_LOGPROBS = 20

HEADER_BYTES = 4096
# int64 words of the header
H_TICKS = 0  # ticks finished
H_TICK_START_NS = 1  # monotonic ns when the tick in progress began; 0 = idle
H_LONGEST_TICK_NS = 2
H_HEARTBEAT_NS = 3  # last time the engine's loop went round
H_BUSY = 4  # what the engine is inside: BUSY_*
H_DECODE_NS_TOTAL = 5  # time inside llama_decode + synchronize
H_TICK_NS_TOTAL = 6  # whole ticks
H_SAMPLE_NS_TOTAL = 7
H_ROWS_SAMPLED = 8
H_ROWS_IN_PLACE = 9  # of those, read where the backend left them
H_COPIED_BYTES = 10  # bytes of logits copied by our code
H_DECODE_TOKENS = 11  # tokens decoded for sessions that generate
H_PREFILL_TOKENS = 12  # prompt tokens computed
H_LAST_BATCH = 13
H_LAST_DECODE_NS = 14
H_LAST_SAMPLE_NS = 15
H_CELLS_USED = 16
H_CELLS_TOTAL = 17
H_PREEMPTIONS = 18
H_TICKS_OVER_BUDGET = 19
H_TICK_RING_AT = 20  # ticks written to the tick ring, ever
H_DECODE_ROWS_TOTAL = 21  # sum over ticks of decoding rows
H_FIRST_CHUNK_NS = 22  # last tick: logits ready -> tokens published
H_CACHED_TOKENS = 23
H_OVERLAPPED = 24  # ticks whose tokens were published while the next decode ran
H_WORK_NS_TOTAL = 25  # time with work waiting or running, between the ticks too
H_BASELINE_NS = 26  # predicted time between tokens of the interactive sessions alone; 0 = unknown
H_GUARD_ACTIVE = 27  # last tick: 1 = the latency guard kept something out
H_SKIPPED_PREFILL = 28  # ticks in which a prompt could run but for the latency guard
H_SLOW_TOKENS = 29  # interactive tokens later than cap x baseline
H_COST_ERROR_PPM = 30  # running mean of |predicted - measured| / measured of a tick, in millionths
H_BMT_LAST_BYTES = 31  # last tick: bytes it should have moved
H_BMT_BYTES_TOTAL = 32  # the same, summed
H_BMT_BUDGET_BPS = 33  # bytes per second that ticks may move; 0 = no budget
H_BMT_MEASURED_BPS = 34  # bytes per second of recent ticks: estimate over the time inside libllama
H_BMT_TRIMMED = 35  # ticks from which the budget kept something out
H_PARKED = 36  # sessions without KV cells that had some
H_KV_EVICTIONS = 37  # sequences that lost their cells
H_ABORTED_CHUNKS = 38  # prompt chunks given up for an interactive request
H_ASIDE_TOKENS = 39  # prompt tokens computed beside the ticks, on cores of their own
H_WORK_SINCE_NS = 41  # monotonic; up to when H_WORK_NS_TOTAL was counted
H_SERVED_DECODERS = 40  # last tick: decoding sessions that got a token
H_HANDLED = 42  # messages of the front, after Start, that the loop has handled
H_TOKENIZING = 44  # ``ref`` of the Tokenize message whose text is being tokenised; 0 = none
# monotonic; since when a tokeniser's thread has the text at hand; 0 = none
H_TEXT_SINCE_NS = 45  # of somebody interactive
H_OTHER_TEXT_SINCE_NS = 46  # of nobody interactive
# what the abort callback of libllama reads (``engine.abort``), one block
H_ABORT_ARMED = 48  # 1 = the tick in progress may be given up
H_URGENT = 49  # written by the front: interactive requests it has sent, or promoted
H_URGENT_SEEN = 50  # of those, how many the engine has taken from its socket
H_ABORT_UNTIL_NS = 51  # monotonic; afterwards the tick is nearly done and goes on
H_CLOCK = 52  # address of clock_gettime, where the callback runs
H_CLOCK_ROOM = 53  # address of the next two words, a struct timespec
ABORT_WORDS = 8

BUSY_IDLE = 0
BUSY_DECODE = 1
BUSY_TOKENIZE = 2

TICK_RING = 1024  # newest ticks kept, for quantiles and traces
# float64 columns of the tick ring
T_END_S = 0  # monotonic seconds
T_WALL_MS = 1
T_DECODE_MS = 2
T_SAMPLE_MS = 3
T_DECODE_ROWS = 4
T_PREFILL_TOKENS = 5
T_CELLS = 6
T_INTERACTIVE_ROWS = 7  # of the decoding rows
T_PREDICTED_MS = 8  # what the cost model said before; 0 = nothing
T_BASELINE_MS = 9
T_BMT_MB = 10
T_ALLOWED_MS = 11  # what the guard allowed; 0 = nobody interactive decoded
T_FLAGS = 12  # bits: 1 the guard kept something out, 2 error budget spent, 4 a prompt ran aside
T_SLICE_MS = 13  # before the tick, for prompts in a second context that waits during ticks
TICK_COLUMNS = 16

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    # name, dtype, shape: "" = one per slot, "ctx" = one per position, "top" = 20 per position
    ("serial", "i8", ""),  # request in this row; 0 = none
    ("state", "i4", ""),
    ("reason", "i4", ""),
    ("lane", "i4", ""),
    ("seq", "i4", ""),  # KV sequence id, -1 = none
    ("n_prompt", "i4", ""),
    ("n_tokens", "i4", ""),  # prompt + generated, as stored in tokens[slot]
    ("n_past", "i4", ""),  # of those, how many are in the KV cache
    ("max_tokens", "i4", ""),
    ("in_tick", "i4", ""),  # 1 while part of a llama_decode; IN_TOKENIZER while it is tokenised
    ("isolate", "i4", ""),  # decodes alone until harmless
    ("t_submit_ns", "i8", ""),  # monotonic; arrival of the request
    ("t_admit_ns", "i8", ""),  # first given a sequence
    ("t_first_ns", "i8", ""),  # first token published
    ("t_last_ns", "i8", ""),
    ("arrival", "i8", ""),  # order of admission, for round-robin and preemption
    ("program", "i4", ""),  # whose request it is: equal numbers, the same program
    ("tokens", "i4", "ctx"),
    ("cap", "f8", ""),  # latency cap of this session, times the baseline; 0 = the daemon's
    ("target_ttft_ms", "f8", ""),  # 0 = none
    ("target_tbt_ms", "f8", ""),  # 0 = none
    ("credit", "f8", ""),  # slow tokens that the guard may still spend on this session
    ("token_ns", "i8", "ctx"),  # monotonic; when the token at this position was published
    ("logprob", "f4", "ctx"),
    ("top_ids", "i4", "top"),  # -1 = unused
    ("top_logprobs", "f4", "top"),
)


@dataclass(frozen=True)
class TableSpec:
    """Sizes that both processes must agree on."""

    n_slots: int
    n_ctx: int  # positions kept per row: the context size + 1

    def layout(self) -> tuple[dict[str, tuple[int, np.dtype, tuple[int, ...]]], int]:
        """Offset, dtype and shape of every column, and the size of the mapping in bytes."""
        offset = HEADER_BYTES + TICK_RING * TICK_COLUMNS * 8
        columns = {}
        for name, code, kind in _COLUMNS:
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

    Lies in memory on Linux (memfd_create(2)); not in ``/dev/shm``, which is often small in a
    container, where a page that it cannot give is a SIGBUS.  The caller owns the descriptor.
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
    ``int32[n_slots, n_ctx]`` and so on (see ``_COLUMNS``).  ``table.header`` is ``int64[512]``,
    ``table.ticks`` is ``float64[TICK_RING, TICK_COLUMNS]``.  The arrays borrow the mapping; it is
    unmapped when the last of them is gone.  ``quick_…`` are some of them once more, as memoryviews:
    one item of these becomes a Python number in a third of the time.
    """

    serial: np.ndarray
    state: np.ndarray
    reason: np.ndarray
    lane: np.ndarray
    seq: np.ndarray
    n_prompt: np.ndarray
    n_tokens: np.ndarray
    n_past: np.ndarray
    max_tokens: np.ndarray
    in_tick: np.ndarray
    isolate: np.ndarray
    t_submit_ns: np.ndarray
    t_admit_ns: np.ndarray
    t_first_ns: np.ndarray
    t_last_ns: np.ndarray
    arrival: np.ndarray
    program: np.ndarray
    cap: np.ndarray
    target_ttft_ms: np.ndarray
    target_tbt_ms: np.ndarray
    credit: np.ndarray
    tokens: np.ndarray
    token_ns: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    def __init__(self, spec: TableSpec, fd: int) -> None:
        columns, size = spec.layout()
        if os.fstat(fd).st_size < size:
            raise ValueError("the session table's file is smaller than its layout needs")
        self.spec = spec
        mapping = mmap.mmap(fd, size)
        self.header = np.frombuffer(mapping, np.int64, HEADER_BYTES // 8)
        self.ticks = np.frombuffer(
            mapping, np.float64, TICK_RING * TICK_COLUMNS, HEADER_BYTES
        ).reshape(TICK_RING, TICK_COLUMNS)
        for name, (offset, dtype, shape) in columns.items():
            count = int(np.prod(shape, dtype=np.int64))
            view = np.frombuffer(mapping, dtype, count, offset).reshape(shape)
            setattr(self, name, view)
        self.quick_header = self.header.data
        self.quick_serial, self.quick_state = self.serial.data, self.state.data
        self.quick_n_tokens = self.n_tokens.data
        self.quick_tokens, self.quick_token_ns = self.tokens.data, self.token_ns.data

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
    """Text of every token as bytes: ``offsets`` int32[n_vocab + 1] into ``data`` uint8.

    The engine writes it once, from ``llama_token_to_piece``, into a second shared mapping; the
    front detokenises from it without libllama.  Control tokens are empty.  Behind it lies the same
    once more of these: how the vocabulary spells tokens that have no text (`hidden`).
    """

    def __init__(self, fd: int, n_vocab: int) -> None:
        self._mapping = mmap.mmap(fd, PIECE_BYTES)
        self.offsets = np.frombuffer(self._mapping, np.int32, n_vocab + 1)
        self._at = self.offsets.data
        self._start = 4 * (n_vocab + 1)
        self.n_vocab = n_vocab

    def write(self, offsets: np.ndarray, data: np.ndarray) -> int:
        """Engine side: store the table; returns the bytes used."""
        end = self._start + data.size
        if end > PIECE_BYTES:
            raise ValueError(f"the vocabulary's text is {data.size} bytes; {PIECE_BYTES} fit")
        self.offsets[:] = offsets
        self._mapping[self._start : end] = data.tobytes()
        return end

    def write_hidden(self, offsets: np.ndarray, data: np.ndarray) -> int:
        """Engine side, after `write`: store the other table; returns the bytes used by both."""
        at = self._hidden_at()
        start = at + 4 * (self.n_vocab + 1)
        end = start + data.size
        if end > PIECE_BYTES:
            raise ValueError(f"the vocabulary's texts and names need {end} of {PIECE_BYTES} bytes")
        self._mapping[at:start] = offsets.astype(np.int32).tobytes()
        self._mapping[start:end] = data.tobytes()
        return end

    def hidden(self, token: int) -> bytes:
        """How a token is spelled that has no text; empty for any other."""
        if not 0 <= token < self.n_vocab:
            return b""
        offset = self._hidden_at()
        at = np.frombuffer(self._mapping, np.int32, 2, offset + 4 * token)
        start = offset + 4 * (self.n_vocab + 1)
        return self._mapping[start + int(at[0]) : start + int(at[1])]

    def spelled(self, token: int) -> bytes:
        """Text of a token, or how it is spelled where it has none."""
        return self.piece(token) or self.hidden(token)

    def _hidden_at(self) -> int:
        """Where the offsets of the other table begin: aligned, behind the texts."""
        return -(-(self._start + self._at[self.n_vocab]) // 4) * 4

    def piece(self, token: int) -> bytes:
        """Bytes of one token; empty for an id outside the vocabulary."""
        if not 0 <= token < self.n_vocab:
            return b""
        start = self._start
        return self._mapping[start + self._at[token] : start + self._at[token + 1]]
