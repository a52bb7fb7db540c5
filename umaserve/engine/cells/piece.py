"""A piece of a session's KV cache on its way from one context to another.

Both contexts are of one model with the same KV types and the same layout of V.  Each keeps one
sequence id spare: libllama saves and restores whole sequences.  So a range of positions passes
through the spare one, which shares the cells and costs no copy of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from umaserve.llama import Context


@dataclass(slots=True)
class Piece:
    """Positions [p0, p1) of request ``serial`` in row ``slot``: ``data[:size]`` (uint8, owned).

    ``epoch`` tells pieces that were called back from those that count.
    """

    slot: int
    serial: int
    epoch: int
    p0: int
    p1: int
    data: np.ndarray
    size: int


def ordinary(size: int) -> np.ndarray:
    """uint8[size] in ordinary memory, not initialised."""
    return np.empty(size, np.uint8)


class Buffers:
    """Byte buffers used again and again: fresh memory costs page faults.

    Two threads may use it; taking and giving back are single operations on a deque.
    """

    def __init__(self, most: int) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=most)

    def take(self) -> np.ndarray | None:
        """A buffer of any size, or None."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, data: np.ndarray) -> None:
        self._free.append(data)


def export_piece(
    context: Context, seq: int, spare: int, p0: int, p1: int, room: np.ndarray | None = None,
    fresh: Callable[[int], np.ndarray] = ordinary,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Copy positions [p0, p1) of ``seq`` out of a context: (uint8 array, bytes used).

    ``room`` is written to if it is large enough, else ``fresh`` makes an array of so many bytes.
    ``spare`` must be empty and is empty afterwards.  The cells stay where they are.  Raises
    ValueError where the sequence does not hold these positions.
    """
    context.seq_cp(seq, spare, p0, p1)
    try:
        if context.seq_pos_max(spare) != p1 - 1:
            raise ValueError(f"sequence {seq} does not hold positions {p0} to {p1 - 1}")
        size = context.state_seq_size(spare)
        if room is None or room.size < size:
            room = fresh(size)
        used = context.state_seq_get(spare, room)
    finally:
        context.seq_rm(spare)
    if used == 0:
        raise ValueError(f"libllama cannot save positions {p0} to {p1 - 1} of sequence {seq}")
    return room, used


def import_piece(
    context: Context, seq: int, spare: int, piece: Piece, end: int | None = None
) -> bool:
    """Append what `export_piece` gave to ``seq``, which must hold [0, piece.p0) and nothing else.

    Of the piece only positions up to ``end`` are appended; None = all.

    Takes piece.p1 - piece.p0 free cells.  False, with nothing changed, where there are too few of
    them or the other context was of another kind.  ``spare`` must be empty and is empty afterwards.
    """
    if context.seq_pos_max(seq) != piece.p0 - 1:
        return False
    complete = context.state_seq_set(spare, piece.data, piece.size) == piece.size
    complete = complete and context.seq_pos_max(spare) == piece.p1 - 1
    if complete:
        context.seq_cp(spare, seq, piece.p0, piece.p1 if end is None else end)
    context.seq_rm(spare)
    return complete
