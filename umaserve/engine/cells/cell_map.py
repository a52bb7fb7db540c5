"""Which KV cell holds what, so that prompts are copied into cells that lie together.

Streams that decode at the same time get their cells in turns.  A stream that ends leaves single
cells free between those of the others, and libllama takes the lowest free cells first.  A prompt
from the second context, or a parked session, is copied into the cache.  Each stretch of cells then
costs a copy for each layer, keys and values.  That is half a millisecond a stretch on an H200, a
tenth of a second for a prompt.

libllama cannot be told which cells to take, but it takes what is free.  So the cells of an ended
request stay its sequence's, which nobody reads any more.  `make_room` frees some just before they
are needed: the lowest for single tokens, the first stretch that is long enough for a prompt.  For
that, libllama's own rule is played here (``llama_kv_cache::find_slot``, ``apply_ubatch``,
``seq_rm``).  If the two should ever disagree, a prompt is scattered.  No cell of a request that
runs is freed by this: only ended sequences are told to forget.

Behind the last cell of a running request nothing is kept, since attention reads up to there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.engine.native.calls import call_i64_ptr_i32_i32_i32
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.jit.record import Record

TOGETHER = 16  # tokens of a prompt that are worth a stretch of cells of their own
UNIT = 8  # cells freed for single tokens at once: libllama looks at all cells with each call
NOBODY = -1
ALL = -1  # instead of a position: from the first, or to the last


class Marks(Record):
    """Figures of all cells together."""

    valid: int  # 0 = who has which cell is not known, and nothing is kept
    head: int  # where libllama starts to look for a free cell
    used: int  # cells that are not free
    low: int  # no cell in front of it is free or kept
    top: int  # behind the last cell that is used


class CellMap(NamedTuple):
    """``owner`` int16[n_ctx]: the sequence that has each cell, or NOBODY; ``position`` int32[n_ctx]
    of its token.  By sequence: ``ended`` uint8, 1 = its request is over; ``cells`` int32, how many
    it has; ``first`` and ``behind`` int32, positions to be freed.  ``marks``: see there.

    ``n_ubatch`` tokens at most are placed at once; ``memory`` is the address of the context's,
    ``forget`` that of ``llama_memory_seq_rm``.
    """

    owner: np.ndarray
    position: np.ndarray
    ended: np.ndarray
    cells: np.ndarray
    first: np.ndarray
    behind: np.ndarray
    marks: Marks
    n_ubatch: int
    memory: int
    forget: int

    @classmethod
    def of(cls, n_ctx: int, n_seqs: int, n_ubatch: int, memory: int, forget: int) -> CellMap:
        """Return the map of an empty cache, not valid yet."""
        return cls(
            np.full(n_ctx, NOBODY, np.int16), np.zeros(n_ctx, np.int32),
            np.zeros(n_seqs, np.uint8), np.zeros(n_seqs, np.int32), np.zeros(n_seqs, np.int32),
            np.zeros(n_seqs, np.int32), Marks.zeros(), n_ubatch, memory, forget,
        )  # fmt: skip

    def clear(self) -> None:
        """The cache is empty, and libllama looks for cells from the first one on."""
        self.owner[:] = NOBODY
        for array in (self.ended, self.cells, self.first, self.behind):
            array[:] = 0
        marks = self.marks
        marks.valid, marks.head, marks.used, marks.low, marks.top = 1, 0, 0, 0, 0


@njit(nogil=True, cache=True)
def make_room(cells, tokens, together, exactly):
    """Free the cells that the next ``tokens`` are to have.

    ``together``: those of a prompt.  Not ``exactly``: a few more for those that come after.
    """
    marks, owner = cells.marks, cells.owner
    if marks.valid == 0:
        return
    while marks.low < owner.size and _is_taken(cells, marks.low):
        marks.low += 1
    cell, left = marks.low, tokens
    if together:
        found = _stretch(cells, tokens)
        cell = found if found >= 0 else cell
    elif not exactly:
        left = max(tokens, UNIT)
    while left > 0 and cell < marks.top:
        if not _is_taken(cells, cell):
            _give_up(cells, cell)
            left -= 1
        cell += 1
    _forget(cells)


@njit(nogil=True, cache=True)
def take_cells(cells, seqs, positions, n):
    """Say who has the cells that libllama gives to the first ``n`` tokens of a batch."""
    for at in range(0, n, cells.n_ubatch):
        count = min(cells.n_ubatch, n - at)
        _look_from(cells, count)
        for i in range(at, at + count):
            _take(cells, seqs[i], positions[i])


@njit(nogil=True, cache=True)
def take_together(cells, seq, positions):
    """Say who has the cells of a sequence's ``positions`` (int32), restored all at once."""
    _look_from(cells, positions.size)
    for position in positions:
        _take(cells, seq, position)


@njit(nogil=True, cache=True)
def lose(cells, seq, p0, p1):
    """A sequence has forgotten positions [p0, p1): their cells are free."""
    if cells.marks.valid == 0:
        return
    lowest = cells.owner.size
    for cell in range(cells.marks.top - 1, -1, -1):
        if cells.owner[cell] == seq and p0 <= cells.position[cell] < p1:
            cells.owner[cell] = NOBODY
            cells.cells[seq] -= 1
            cells.marks.used -= 1
            lowest = cell
    _lower_top(cells)
    _freed(cells, lowest)


@njit(**INNER)
def cut_end(cells, seq, first, n):
    """Have a sequence forget its last ``n`` positions, from ``first`` on."""
    call_i64_ptr_i32_i32_i32(cells.forget, cells.memory, seq, first, ALL)
    if cells.marks.valid == 0:
        return
    cell, lowest = cells.marks.top, cells.owner.size
    while n > 0 and cell > 0:
        cell -= 1
        if cells.owner[cell] == seq and cells.position[cell] >= first:
            cells.owner[cell] = NOBODY
            cells.cells[seq] -= 1
            cells.marks.used -= 1
            lowest = cell
            n -= 1
    _lower_top(cells)
    _freed(cells, lowest)


@njit(nogil=True, cache=True)
def end_sequence(cells, seq):
    """A request is over: its cells are kept, but those behind all that still run."""
    marks = cells.marks
    cells.ended[seq] = 1
    last = marks.top
    while last > 0 and not _is_taken(cells, last - 1):
        last -= 1
        _give_up(cells, last)
    _forget(cells)
    marks.top = last
    for cell in range(marks.low):
        if cells.owner[cell] == seq:
            marks.low = cell
            break
    marks.low = min(marks.low, last)


@njit(nogil=True, cache=True)
def free_sequence(cells, seq):
    """Free all cells of an ended sequence, wherever they lie."""
    for cell in range(cells.marks.top):
        if cells.owner[cell] == seq:
            _give_up(cells, cell)
    _forget(cells)


@njit(**INNER)
def _is_taken(cells, cell):
    owner = cells.owner[cell]
    return owner >= 0 and cells.ended[owner] == 0


@njit(**INNER)
def _stretch(cells, tokens):
    """The first of so many cells side by side that are free or kept; -1 where there are none."""
    begin = cells.marks.low
    for cell in range(begin, cells.owner.size):
        if _is_taken(cells, cell):
            begin = cell + 1
        elif cell + 1 - begin == tokens:
            return begin
    return -1


@njit(**INNER)
def _give_up(cells, cell):
    """Free a cell if it is kept; `_forget` has to follow.

    libllama is told ranges of positions, as long as they can be: those of streams that took turns
    are one range each.
    """
    seq = cells.owner[cell]
    if seq < 0:
        return
    position = cells.position[cell]
    if cells.first[seq] == cells.behind[seq]:
        cells.first[seq], cells.behind[seq] = position, position + 1
    elif position == cells.behind[seq]:
        cells.behind[seq] += 1
    elif position + 1 == cells.first[seq]:
        cells.first[seq] = position
    else:
        _forget_range(cells, seq)
        cells.first[seq], cells.behind[seq] = position, position + 1
    cells.owner[cell] = NOBODY
    cells.cells[seq] -= 1
    cells.marks.used -= 1
    _freed(cells, cell)


@njit(**INNER)
def _forget(cells):
    for seq in range(cells.first.size):
        if cells.first[seq] < cells.behind[seq]:
            _forget_range(cells, seq)


@njit(**INNER)
def _forget_range(cells, seq):
    p0, p1 = cells.first[seq], cells.behind[seq]
    if cells.cells[seq] == 0:
        p0, p1 = ALL, ALL  # the last of it
    call_i64_ptr_i32_i32_i32(cells.forget, cells.memory, seq, p0, p1)
    cells.first[seq] = cells.behind[seq] = 0


@njit(**INNER)
def _freed(cells, cell):
    cells.marks.head = min(cells.marks.head, cell)
    cells.marks.low = min(cells.marks.low, cell)


@njit(**INNER)
def _lower_top(cells):
    while cells.marks.top > 0 and cells.owner[cells.marks.top - 1] < 0:
        cells.marks.top -= 1


@njit(**INNER)
def _look_from(cells, tokens):
    marks = cells.marks
    if marks.head > marks.used + 2 * tokens:
        marks.head = 0


@njit(nogil=True, cache=True)
def _take(cells, seq, position):
    """The next free cell from the head on."""
    marks, owner = cells.marks, cells.owner
    if marks.valid == 0:
        return
    size = owner.size
    for _ in range(size):
        if marks.head >= size:
            marks.head = 0
        cell = marks.head
        marks.head += 1
        if owner[cell] < 0:
            owner[cell], cells.position[cell] = seq, position
            cells.cells[seq] += 1
            marks.used += 1
            marks.top = max(marks.top, cell + 1)
            return
    marks.valid = 0  # libllama will say so too
