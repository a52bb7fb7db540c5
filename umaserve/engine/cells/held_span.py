"""KV cells kept ahead of those in use, so that an accelerator's graphs stay the same for longer.

Attention reads all cells up to the last one in use, and libllama builds its graph for so many of
them (``llama_kv_cache::get_n_kv``, in steps of 256).  Where graphs are captured, each step costs
two slow ticks: one launches every kernel by itself, the next captures the new graph
(``ggml_backend_cuda_graph_compute``).  Thirty-two streams take such a step every eight ticks.

So a cell far ahead is held by a sequence that is nobody's: its last one is what the span goes by,
and the cells in front of it are free.  libllama has no call for that.  But a sequence of ``cells``
tokens, saved once on the device (``LLAMA_STATE_SEQ_FLAGS_ON_DEVICE``), is restored into free cells
within a millisecond or two, and all of it but the last token forgotten at once.  No other sequence
sees it; attention skips what is masked, and reads up to ``cells`` more.

Restored cells go where cells are free, the lowest first, and each stretch of them costs a copy for
each layer.  Streams that end leave single cells free between those of the others: filling two
thousand of these took half a second on an H200.  So nothing is held while some are free in front of
the last one in use (``TOP``), and `cell_map` sees to it that hardly any are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from umaserve.engine.model.abilities import device_memory, why_not_plain
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import (
    Native,
    call_i64_ptr_i32_i32_i32,
    call_i64_ptr_ptr_i64_i32_i32,
)
from umaserve.jit.compiled import njit

from .cell_map import TOP as CELLS_TOP
from .cell_map import CellMap, lose, take_together

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

STEP = 256  # cells by which a graph's span grows
FEWEST, MOST = 512, 2048  # cells held
SHARE = 4  # of the context, one part in so many at most
WEIGHTS_SHARE = 16  # the saved cells take at most one part in so many of the weights' memory
RESERVE_BYTES = 256 << 20  # device memory that stays free
SLOW_MS = 200.0  # computing the cells once, at start, may take no longer
TIMES = 3  # that what it costs and saves is measured
WORTH_IT = 2.0  # times the cost that is saved

ROOM = 1 << 17  # bytes for what libllama saves beside the data: 12 for a cell, 24 for a layer
ON_DEVICE = 2  # LLAMA_STATE_SEQ_FLAGS_ON_DEVICE

# words of ``Span.held``
LIMIT = 0  # cells that may be in use before the span has to grow; 0 = nothing is held
FROM = 1  # cells that were in use when it was held last
CELLS = 2  # how many cells ahead; 0 = never
SIZE = 3  # bytes of ``Span.state``
TOP = 4  # cells that may lie in front of the last one in use; fewer in use = some of them are free
WORDS = 5


class Span(NamedTuple):
    """What the ticks know of it.  ``cells`` says who has which; ``held`` is int64[WORDS]; ``state``
    uint8[ROOM] what libllama saved of sequence ``seq`` (the data lie on the device); ``memory``,
    ``restore`` and ``forget`` are addresses: the context's memory and the two functions that are
    called."""

    cells: CellMap
    held: np.ndarray
    state: np.ndarray
    seq: int
    n_ctx: int
    memory: int
    restore: int
    forget: int


class HeldSpan:
    """The span of the loop's context.  ``batch`` is the loop's own and is written to while no tick
    runs; ``record`` is what the ticks take."""

    def __init__(self, loaded: Loaded, batch: Batch, cells: CellMap | None = None) -> None:
        library = loaded.library
        self._loaded = loaded
        self._batch = batch
        self.record = Span(
            CellMap.of(0, loaded.n_seq + 2, 1, 0, 0) if cells is None else cells,
            np.zeros(WORDS, np.int64),
            np.zeros(ROOM, np.uint8),
            loaded.n_seq + 1,
            loaded.n_ctx,
            int(library.ffi.cast("intptr_t", loaded.context.memory)),
            library.address("llama_state_seq_set_data_ext"),
            library.address("llama_memory_seq_rm"),
        )

    @property
    def is_held(self) -> bool:
        return bool(self.record.held[LIMIT])

    def release(self) -> bool:
        """Hold nothing, until the ticks do again; between ticks only.  False where nothing was."""
        held = self.is_held
        if held:
            release_span(self.record)
        return held

    def in_use(self, top: int) -> None:
        """Every cell in use lies in front of this one; 0 = none is, nor is one held any more."""
        self.record.held[TOP] = min(self.record.held[TOP], top)
        if not top:
            self.release()

    def measure(self, native: Native) -> Iterator[None]:
        """Find out whether it pays with this model, on this accelerator; nothing may run.

        A step for each round of some ticks.
        """
        cells = cells_to_hold(self._loaded)
        if not cells or not self._save(cells):
            return
        context, held = self._loaded.context, self.record.held
        steps_ms, held_ms = [], []
        for _ in range(1 + TIMES):
            yield
            usual_ms = min(self._tick_ms(at) for at in range(4))
            if usual_ms < 0.0:
                break
            held[CELLS] = cells
            began = time.perf_counter()
            placed = place_span(self.record, native)
            held_ms.append(1000.0 * (time.perf_counter() - began))
            held[CELLS] = 0
            if not placed:
                break
            # launched one by one, then captured
            steps_ms.append(self._tick_ms(4) + self._tick_ms(5) - 2.0 * usual_ms)
            for seq in (0, self.record.seq):
                context.seq_rm(seq)
        else:
            # the first time kernels are loaded, and code compiled
            saved_ms = (cells // STEP - 1) * min(steps_ms[1:])
            if saved_ms >= WORTH_IT * min(held_ms[1:]):
                held[CELLS] = cells

    def _save(self, cells: int) -> bool:
        """Compute so many tokens of nobody's and save them on the device."""
        loaded, arrays, seq = self._loaded, self._batch.arrays, self.record.seq
        lib, ffi = loaded.library.lib, loaded.library.ffi
        each = min(loaded.n_ubatch, arrays.token.size)
        try:
            for at in range(0, cells, each):
                n = min(each, cells - at)
                arrays.token[:n] = 1 + 7919 * np.arange(at + 1, at + n + 1) % (loaded.n_vocab - 1)
                arrays.pos[:n] = np.arange(at, at + n)
                arrays.seq[:n], arrays.logits[:n] = seq, 0
                arrays.logits[n - 1] = 1
                took_ms = self._decode(n)
                if took_ms < 0.0 or took_ms * (cells - at) > SLOW_MS * n:
                    return False
            size = int(lib.llama_state_seq_get_size_ext(loaded.context.pointer, seq, ON_DEVICE))
            if not 0 < size <= ROOM:
                return False
            state = ffi.from_buffer("uint8_t[]", self.record.state, require_writable=True)
            self.record.held[SIZE] = size
            return size == lib.llama_state_seq_get_data_ext(
                loaded.context.pointer, state, size, seq, ON_DEVICE
            )
        finally:
            loaded.context.seq_rm(seq)

    def _tick_ms(self, at: int) -> float:
        """A token of sequence 0 at a position."""
        arrays = self._batch.arrays
        arrays.token[0], arrays.pos[0], arrays.seq[0], arrays.logits[0] = 1, at, 0, 1
        return self._decode(1)

    def _decode(self, n: int) -> float:
        """ms of the first ``n`` tokens of the batch; negative where libllama refused it."""
        loaded = self._loaded
        self._batch.arrays.n_tokens[0] = n
        began = time.perf_counter()
        status = loaded.library.lib.uma_decode(loaded.context.pointer, self._batch.struct)
        loaded.context.synchronize()
        return 1000.0 * (time.perf_counter() - began) if status == 0 else -1.0


def cells_to_hold(loaded: Loaded) -> int:
    """How many cells ahead, by what memory there is; 0 = none."""
    if not loaded.overlap or why_not_plain(loaded) or loaded.context.n_seq_max < loaded.n_seq + 2:
        return 0
    cell_bytes = max(loaded.kv_bytes // loaded.n_ctx, 1)
    cells = min(loaded.n_ctx // SHARE, MOST, loaded.model.size_bytes // WEIGHTS_SHARE // cell_bytes)
    cells -= cells % STEP
    free = device_memory(loaded)
    if free is not None and cells * cell_bytes + RESERVE_BYTES > free:
        return 0
    return cells if cells >= FEWEST else 0


@njit(nogil=True, cache=True)
def hold_span(span, native, used, adding, decoding):
    """Before a tick that adds so many cells to those in use: hold more where the span would grow.

    Only ticks in which everybody is ``decoding`` have graphs that come again.
    """
    held = span.held
    cells = held[CELLS]
    if cells == 0:
        return
    # libllama takes the lowest free cells, so none lies behind those that were in use before all
    # of these are in use again
    top = max(held[TOP], used) if used else 0
    held[TOP] = max(top, used + adding)
    if held[LIMIT]:
        if used + adding + span.n_ctx // 8 > span.n_ctx:
            release_span(span)  # the last cell may be needed
            return
        if 2 * used + cells < held[FROM]:
            release_span(span)  # attention reads too much: little of what was in use is left
            return
        if not decoding or used + 3 * adding <= held[LIMIT]:
            return
    elif not decoding or (used + adding - 1) // STEP == (used - 1) // STEP:
        return
    if used < top or used + cells + span.n_ctx // 8 > span.n_ctx:
        return
    release_span(span)
    if place_span(span, native):
        held[LIMIT], held[FROM] = used + cells, used


@njit(nogil=True, cache=True)
def place_span(span, native):
    """Hold a cell so far ahead of those in use.  False, with nothing held, where none was free."""
    size = span.held[SIZE]
    read = call_i64_ptr_ptr_i64_i32_i32(
        span.restore, native.context, span.state.ctypes.data, size, span.seq, ON_DEVICE
    )
    if read != size:
        return False
    last, top = span.held[CELLS] - 1, span.cells.words[CELLS_TOP]
    take_together(span.cells, span.seq, np.arange(last + 1).astype(np.int32))
    call_i64_ptr_i32_i32_i32(span.forget, span.memory, span.seq, 0, last)
    lose(span.cells, span.seq, 0, last)
    span.cells.words[CELLS_TOP] = top
    return True


@njit(nogil=True, cache=True)
def release_span(span):
    """Hold nothing."""
    call_i64_ptr_i32_i32_i32(span.forget, span.memory, span.seq, -1, -1)
    lose(span.cells, span.seq, 0, span.n_ctx)
    span.held[LIMIT] = span.held[FROM] = 0
