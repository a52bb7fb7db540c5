"""Pictures in prompts: embeddings in place of tokens, decoded between two ticks.

A batch holds tokens or embeddings, never both.  So a chunk of a prompt ends before a picture, and
no tick feeds the row until its embeddings are decoded here.  One step decodes a part of one row's
picture, and streams get ticks for as long before the next.  In the row a picture is pseudo tokens,
which the prefix cache compares like any others.  There are as many as it takes positions: with
M-RoPE fewer than it has embeddings, whose cells are all at the first of them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from umaserve.engine.cells import accounting as cells
from umaserve.engine.model.abilities import has_several_dimensions
from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED
from umaserve.engine.ticks.beside import UNLIKE
from umaserve.engine.ticks.records import Flight
from umaserve.policy.cost.model import CostModel
from umaserve.policy.cost.prediction import efficient_chunk
from umaserve.policy.pace import FAR_MS, WORTHWHILE
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.states import NOT_FED

from .seats import Seats
from .turns import AdapterTurns

ROW_NS = 200_000_000  # that an embedding may take before an engine that computes seems to hang
GONE = "the embeddings of its picture cannot be read: {}"


class Placed(NamedTuple):
    """A run of embeddings at positions [start, end) of a row."""

    start: int
    end: int
    run: m.Run


class Pictures:
    """The rows with pictures; for the loop's thread, between ticks.

    ``aside`` is the policy's column, in which a row at a picture is marked as not fed.
    """

    def __init__(
        self, setup: Setup, aside: np.ndarray, flight: Flight, cost: CostModel,
        turns: AdapterTurns, seats: Seats,
    ) -> None:  # fmt: skip
        self._table, self._loaded = setup.table, setup.loaded
        self._aside, self._flight, self._cost = aside, flight, cost
        self._turns, self._seats = turns, seats
        self._ffi, self._lib = setup.loaded.library.ffi, setup.loaded.library.lib
        self._placed: dict[int, list[Placed]] = {}  # by slot
        self._begun: dict[int, int] = {}  # embeddings of a grid that are decoded, by slot
        self._rests_until_ns = 0  # beside streams, which have as much time
        self._n_embd = setup.loaded.model.n_embd_input
        several = has_several_dimensions(self._lib, setup.loaded.model.pointer)
        self._dimensions = 4 if several else 1

    def arrive(self, slot: int, pictures: tuple[m.Picture, ...]) -> None:
        """A request has got a row, whose tokens are there."""
        self._placed.pop(slot, None)
        self._begun.pop(slot, None)
        if not pictures:
            return
        table = self._table
        table.speculate[slot], table.shifts[slot] = 0, -1
        tokens, at = table.tokens[slot, : int(table.n_tokens[slot])], 0
        found = []
        for run in (run for picture in pictures for run in picture.runs):
            at += int(np.argmax(tokens[at:] < t.NOT_YET))
            found.append(Placed(at, at + run.positions, run))
            at += run.positions
        self._placed[slot] = found

    def has(self, slot: int) -> bool:
        """Whether the row's prompt has pictures."""
        return slot in self._placed

    def last_position(self, slot: int, n: int) -> int:
        """Return the position of the last cell of a row's first ``n`` tokens.

        With M-RoPE all cells of a picture are at its first position.
        """
        grids = (p for p in self._placed.get(slot, ()) if p.run.columns)
        return next((p.start for p in grids if p.start < n <= p.end), n - 1)

    def keep(self, slot: int, n: int) -> int:
        """Cut a row's sequence behind its first ``n`` tokens; return how many stay, 0 or ``n``."""
        seq, last = int(self._table.seq[slot]), self.last_position(slot, n)
        return n if self._loaded.context.cut(seq, n, last) else 0

    @property
    def is_left(self) -> bool:
        """Whether a running row has a picture before it that is not decoded yet."""
        state, past = self._table.state, self._table.n_past
        return any(
            state[slot] == t.RUNNING and past[slot] < placed[-1].end
            for slot, placed in self._placed.items()
        )

    def step(self) -> bool:
        """Decode a part of one picture, if a row stands at one; returns whether one does.

        Streams come first for as long as the last part took.
        """
        table, aside = self._table, self._aside
        rows = []
        for slot in self._placed:
            if table.state[slot] == t.RUNNING and not self._turns.is_paused(slot):
                stands = self._next(slot) is not None
                aside[slot] = NOT_FED if stands else -1
                rows += [slot] * stands
        if not rows:
            return False
        if time.monotonic_ns() < self._rests_until_ns and self._has_streams():
            return True
        slot = min(rows, key=lambda slot: (table.lane[slot], table.arrival[slot]))
        placed = self._next(slot)
        assert placed is not None
        self._decode(slot, placed)
        if table.state[slot] == t.RUNNING and self._next(slot) is None:
            aside[slot] = -1
        return True

    def _next(self, slot: int) -> Placed | None:
        """The run that a row's next token belongs to."""
        past = int(self._table.n_past[slot])
        return next((p for p in self._placed[slot] if p.start <= past < p.end), None)

    def _decode(self, slot: int, placed: Placed) -> None:
        table = self._table
        past, run, seq = int(table.n_past[slot]), placed.run, int(table.seq[slot])
        if (run.non_causal or run.columns) and past > placed.start:
            # the prefix cache had a part of it
            table.n_past[slot] = self.keep(slot, placed.start)
            return
        first = self._first(slot, past, seq) if run.columns else past - placed.start
        left = run.rows - first
        n = left if run.non_causal else min(left, self._most(past))
        try:
            embeddings = self._read(run, first, n)
        except OSError as error:
            text = GONE.format(error.strerror or error)
            self._seats.fail([slot], "E_RUNTIME_001", text)
            return
        header = table.header
        table.in_tick[slot] = 1
        # it is no hang that a picture takes long
        began_ns = time.monotonic_ns()
        header.tick_start_ns = header.heartbeat_ns = began_ns + ROW_NS * n
        header.busy = t.BUSY_DECODE
        positions = positions_of(run, placed.start, first, n, self._dimensions)
        status = self._call(embeddings, seq, positions, run.non_causal)
        header.busy, header.tick_start_ns = t.BUSY_IDLE, 0
        header.heartbeat_ns = ended_ns = time.monotonic_ns()
        self._rests_until_ns = 2 * ended_ns - began_ns
        # libllama builds its next graph anew
        self._flight.unlike = max(self._flight.unlike, UNLIKE)
        if status != DECODED:
            self._seats.decode_failed(status, [slot])
            return
        table.in_tick[slot] = 0
        if first + n == run.rows:
            table.n_past[slot] = placed.end
            self._begun.pop(slot, None)
        elif run.columns:
            self._begun[slot] = first + n
        else:
            table.n_past[slot] = past + n
        header.cells_used = cells.cells_used(table)

    def _has_streams(self) -> bool:
        """Whether an answer is being read whose row is not paused."""
        return self._seats.somebody_decodes(self._turns.is_paused)

    def _most(self, past: int) -> int:
        """Embeddings of a part: beside streams as many tokens as a prompt's chunk would have."""
        most = self._loaded.n_ubatch
        chunk = self.chunk(past, most) if self._has_streams() else most
        return chunk or most

    def chunk(self, past: int, most: int) -> int:
        """Return `efficient_chunk` of so many; the first call of a process may compile it."""
        return int(efficient_chunk(self._cost, float(past), FAR_MS, most, WORTHWHILE))

    def _first(self, slot: int, past: int, seq: int) -> int:
        """Embedding of a grid that comes next: the row stays at its beginning until it has all.

        Where its cells are gone, the row has lost its sequence meanwhile.
        """
        begun = self._loaded.context.seq_pos_max(seq) == past
        return self._begun.get(slot, 0) if begun else 0

    def _read(self, run: m.Run, first: int, n: int) -> np.ndarray:
        """Embeddings [first, first + n) of a run.  Raises ``OSError``."""
        size = self._n_embd * n
        at = run.at + 4 * self._n_embd * first
        found = np.fromfile(run.path, np.float32, size, offset=at)
        if found.size != size:
            raise OSError("the file is too short")
        return found

    def _call(
        self, embeddings: np.ndarray, seq: int, positions: np.ndarray, non_causal: bool
    ) -> int:
        """``llama_decode`` of embeddings; returns its status."""
        loaded, ffi, n = self._loaded, self._ffi, embeddings.size // self._n_embd
        batch = Batch(ffi, n, 1)
        batch.arrays.seq[:], batch.arrays.n_tokens[0] = seq, n
        batch.struct.token = ffi.NULL
        batch.struct.embd = ffi.cast("float *", embeddings.ctypes.data)
        batch.struct.pos = ffi.cast("llama_pos *", positions.ctypes.data)
        place_threads(loaded.places, max(loaded.n_threads, loaded.n_threads_batch))
        context = loaded.context
        if non_causal:
            self._lib.llama_set_causal_attn(context.pointer, False)
        try:
            status = int(self._lib.uma_decode(context.pointer, batch.struct))
            context.synchronize()
        finally:
            if non_causal:
                self._lib.llama_set_causal_attn(context.pointer, True)
        return status


def positions_of(run: m.Run, start: int, first: int, n: int, dimensions: int) -> np.ndarray:
    """Positions of embeddings [first, first + n) of a run that begins at ``start``.

    int32[dimensions * n], of M-RoPE's four all times, all lines, all columns, and those of a
    dimension that a grid leaves at 0 (``mtmd_image_tokens_get_decoder_pos`` and
    ``mtmd_helper_decode_image_chunk``).  In a line all dimensions are equal.
    """
    rows = np.arange(first, first + n, dtype=np.int32)
    if not run.columns:
        return np.tile(start + rows, dimensions)
    lines, columns = np.divmod(rows, np.int32(run.columns))
    time_of = np.full(n, start, np.int32)
    return np.concatenate((time_of, start + lines, start + columns, np.zeros(n, np.int32)))
