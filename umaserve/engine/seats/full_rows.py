"""Rows whose context is full and may be shifted: their cells stay until the front has read them.

The front has to read a row before its tokens move.  So a row that is full ends like any other, but
for its cells (state FULL).  The front reads it and answers with `Shift`, or with `Release` where no
more tokens are wanted.  Then the dropped tokens leave the row and its sequence.  The tokens behind
them move down, so that a token's place in the row stays its position.  A row that could not keep
its cells is computed again from what is left of its tokens, like a row that was parked.
"""

from __future__ import annotations

import time

from umaserve.engine.admission.admission import Admission
from umaserve.engine.cells import accounting as cells
from umaserve.engine.model.loaded import Setup
from umaserve.engine.ticks.beside import UNLIKE
from umaserve.engine.ticks.records import Flight
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import stores_first

from .seats import Seats
from .turns import AdapterTurns


class FullRows:
    """For the loop's thread, between ticks."""

    def __init__(
        self, setup: Setup, admission: Admission, seats: Seats, turns: AdapterTurns, flight: Flight
    ) -> None:
        self._table, self._n_positions = setup.table, setup.loaded.n_positions
        self._admission, self._seats, self._turns, self._flight = admission, seats, turns, flight

    @property
    def holds(self) -> bool:
        """Whether there are such rows."""
        return t.FULL in self._table.state.tolist()

    def ended(self, slot: int) -> None:
        """The ticks have ended a row; what it has is free, unless its context may be shifted."""
        prefixes = self._seats.prefixes
        if self._keeps(slot):
            prefixes.keep(slot, not self._seats.somebody_decodes())
            prefixes.forget(slot)  # its cells will not be those of its tokens alone
        else:
            self._seats.leave(slot)

    def _keeps(self, slot: int) -> bool:
        """Whether a row that the ticks have ended keeps its cells; then it is FULL."""
        table = self._table
        n_tokens = int(table.n_tokens[slot])
        is_full = n_tokens >= self._n_positions
        if table.shifts[slot] < 0 or table.reason[slot] != t.REASON_LENGTH or not is_full:
            return False
        if table.n_past[slot] != n_tokens - 1:
            return False
        table.state[slot] = t.FULL
        table.header.cells_used = cells.cells_used(table)
        return True

    def shift(self, message: m.Shift) -> None:
        """Drop tokens behind the first ones, and let the row go on."""
        table = self._table
        slot = self._admission.slot_of(message.serial)
        if slot < 0 or table.state[slot] not in (t.DONE, t.FULL):
            return
        seq, behind = int(table.seq[slot]), message.kept + message.dropped
        stays = table.state[slot] == t.FULL
        if stays and not self._seats.sequences.shift(seq, message.kept, behind):
            stays = False
        if stays:
            table.n_past[slot] -= message.dropped
            self._flight.unlike = UNLIKE  # libllama builds its next graph anew
            self._turns.begin(slot)
        else:
            if seq >= 0:
                self._seats.drop_sequence(slot)
            table.t_wait_ns[slot] = time.monotonic_ns()
        with self._admission.constraints.moving(message.serial, message.dropped):
            self._move_tokens(slot, message)
        stores_first()
        table.state[slot] = t.RUNNING if stays else t.WAITING
        stores_first()  # the front waits for this count, and then reads the row
        table.shifts[slot] += 1
        table.header.cells_used = cells.cells_used(table)

    def _move_tokens(self, slot: int, message: m.Shift) -> None:
        table, dropped = self._table, message.dropped
        n_tokens = int(table.n_tokens[slot])
        row, left = table.tokens[slot], n_tokens - dropped
        row[message.kept : left] = row[message.kept + dropped : n_tokens].copy()
        row[left] = t.NOT_YET
        table.n_tokens[slot] = left
        table.n_prompt[slot] -= dropped
        self._admission.resumed_at[slot] -= dropped
        room = self._n_positions - int(table.n_prompt[slot])
        table.max_tokens[slot] = min(message.max_tokens, room)
        table.reason[slot] = t.REASON_NONE

    def let_go(self, slot: int) -> None:
        """A row does not go on: its cells are free."""
        if self._table.state[slot] == t.FULL:
            self._seats.drop_sequence(slot)
            self._table.state[slot] = t.DONE
            self._table.header.cells_used = cells.cells_used(self._table)

    def let_all_go(self) -> None:
        """The memory is emptied: rows that are full are computed again."""
        for slot in range(self._table.state.size):
            self.let_go(slot)
