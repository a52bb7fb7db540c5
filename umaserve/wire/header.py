"""The front of the session table: words about the engine as a whole, and the newest ticks.

A word is an int64 with a name.  It lies aligned, so no process ever sees half of one.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

W = TypeVar("W", bound="Words")

# what ``Header.busy`` says
BUSY_IDLE = 0
BUSY_DECODE = 1

HEADER_BYTES = 4096
TICK_RING = 1024  # newest ticks kept, for quantiles and traces


def _word(at: int) -> property:
    """The attribute that is the word at this place."""

    def read(self: Words) -> int:
        return self._words[at]

    def write(self: Words, value: int) -> None:
        self._words[at] = value

    return property(read, write)


class Words:
    """Base class of int64 words, in the order in which a derived class annotates them.

    Each word is an attribute in Python.  ``record`` (``np.record``) is the same memory for compiled
    code, which names the words as fields.  ``memory`` is borrowed, and kept alive.
    """

    dtype: ClassVar[np.dtype[Any]]

    def __init_subclass__(cls) -> None:
        fields = [(name, np.int64) for name in cls.__annotations__]
        cls.dtype = np.dtype((np.record, np.dtype(fields, align=True)))
        for at, (name, _) in enumerate(fields):
            setattr(cls, name, _word(at))

    def __init__(self, memory: Any, offset: int = 0) -> None:
        """``memory``: a writable buffer; ``offset`` in bytes, a multiple of 8."""
        count = self.dtype.itemsize // 8
        self.record: Any = np.frombuffer(memory, self.dtype, 1, offset)[0]
        # a memoryview's items become Python numbers in half the time of an array's
        self._words = np.frombuffer(memory, np.int64, count, offset).data

    @classmethod
    def fresh(cls: type[W]) -> W:
        """Return words in new memory, all 0."""
        return cls(np.zeros(cls.dtype.itemsize, np.uint8))

    def address_of(self, name: str) -> int:
        """Where a word lies in this process."""
        at = list(type(self).__annotations__).index(name)
        return int(np.asarray(self._words).ctypes.data) + 8 * at

    def clear(self) -> None:
        """Set all words to 0."""
        for at in range(len(self._words)):
            self._words[at] = 0


class Header(Words):
    """State and counters of the engine, which writes what the front reads.  Times are monotonic."""

    ticks: int  # finished
    tick_start_ns: int  # when the tick in progress began; 0 = idle
    longest_tick_ns: int
    heartbeat_ns: int  # last time the engine's loop went round
    busy: int  # what the engine is inside: BUSY_*
    decode_ns_total: int  # time inside llama_decode + synchronize
    tick_ns_total: int  # whole ticks
    sample_ns_total: int
    rows_sampled: int
    rows_in_place: int  # of those, read where the backend left them
    copied_bytes: int  # bytes of logits copied by our code
    decode_tokens: int  # tokens decoded for sessions that generate
    prefill_tokens: int  # prompt tokens computed
    last_batch: int
    last_decode_ns: int
    last_sample_ns: int
    cells_used: int
    cells_total: int
    preemptions: int
    ticks_over_budget: int
    tick_ring_at: int  # ticks written to the tick ring, ever
    decode_rows_total: int  # sum over ticks of decoding rows
    first_chunk_ns: int  # last tick: logits ready -> tokens published
    cached_tokens: int
    overlapped: int  # ticks whose tokens were published while the next decode ran
    work_ns_total: int  # time with work waiting or running, between the ticks too
    work_since_ns: int  # up to when that was counted
    baseline_ns: int  # predicted time between tokens of the interactive sessions alone; 0 = unknown
    guard_active: int  # last tick: 1 = the latency guard kept something out
    skipped_prefill: int  # ticks in which a prompt could run but for the latency guard
    slow_tokens: int  # interactive tokens later than cap x baseline
    # running mean of |predicted - measured| / measured of a tick, in millionths
    cost_error_ppm: int
    bmt_last_bytes: int  # last tick: bytes it should have moved
    bmt_bytes_total: int  # the same, summed
    bmt_budget_bps: int  # bytes per second that ticks may move; 0 = no budget
    bmt_measured_bps: int  # bytes per second of recent ticks: estimate over time inside libllama
    bmt_trimmed: int  # ticks from which the budget kept something out
    kv_evictions: int  # sequences that lost their cells
    aborted_chunks: int  # prompt chunks given up for an interactive request
    aside_tokens: int  # prompt tokens computed beside the ticks, on cores of their own
    served_decoders: int  # last tick: decoding sessions that got a token
    handled: int  # messages of the front, after Start, that the loop has handled
    tokenizing: int  # ``ref`` of the Tokenize message whose text is being tokenised; 0 = none
    # since when a tokeniser's thread has the text at hand; 0 = none
    text_since_ns: int  # of somebody interactive
    other_text_since_ns: int  # of nobody interactive
    cache_asked: int  # prompts that the prefix cache was asked for
    cache_hits: int  # of these, how many began with tokens that it had
    cache_entries: int
    cache_bytes: int  # of memory that these take
    cache_most_bytes: int  # that they may take now
    cache_evicted_room: int  # entries that made room for others
    cache_evicted_memory: int  # entries given up because the machine's memory was needed
    reread_bytes: int  # that the engine has had read from disk since it was ready, but kept texts
    draft_tokens: int  # tokens that were drafted, and fed to be verified
    draft_accepted: int  # of these, those that the model's samplers chose too
    draft_gained_ns: int  # predicted time without drafts, less that of the ticks that had some


class AbortWords(Words):
    """Words that the abort callback of libllama reads (`umaserve.engine.native.abort`)."""

    armed: int  # 1 = the tick in progress may be given up
    urgent: int  # written by the front: interactive requests it has sent, or promoted
    urgent_seen: int  # of those, how many the engine has taken from its socket
    until_ns: int  # monotonic; afterwards the tick is nearly done and goes on
    clock: int  # address of clock_gettime, where the callback runs
    clock_room: int  # address of the next two words
    now_s: int  # these two: a struct timespec that the callback has filled
    now_ns: int
    asked: int  # written by the callback: how often libllama has asked it


ABORT_AT = -(-Header.dtype.itemsize // 64) * 64  # a cache line of its own, which the front writes


class TickRow(NamedTuple):
    """Record of a tick in the ring: float64 each."""

    end_s: float  # monotonic seconds
    wall_ms: float
    decode_ms: float
    sample_ms: float
    decode_rows: float
    prefill_tokens: float
    cells: float
    interactive_rows: float  # of the decoding rows
    predicted_ms: float  # what the cost model said before; 0 = nothing
    baseline_ms: float
    bmt_mb: float
    allowed_ms: float  # what the guard allowed; 0 = nobody interactive decoded
    flags: float  # bits: 1 the guard kept something out, 2 error budget spent, 4 a prompt ran aside
    drafted: float  # tokens, behind those of the decoding rows
    accepted: float  # of these, those that a row got
    slice_ms: float  # before the tick, for prompts in a second context that waits during ticks


TICK_ROW: np.dtype[Any] = np.dtype((np.record, [(name, np.float64) for name in TickRow._fields]))
