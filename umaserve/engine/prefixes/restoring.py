"""Known beginnings of rows on their way into their sequences, part by part."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.cache.entry import Entry, Part
from umaserve.engine.cells.accounting import cells_used
from umaserve.engine.cells.sequences import Sequences
from umaserve.policy.cost.model import CostModel
from umaserve.policy.cost.prediction import predict
from umaserve.wire import table as t

from .copies import Pieces, WholeStates


class Restorer:
    """``on_end`` hears of each row that has what is known of it.  For the loop's thread.

    ``parts`` are those on their way, by slot.
    """

    def __init__(
        self, table: t.SessionTable, sequences: Sequences, cost: CostModel,
        copies: Pieces | WholeStates, n_ctx: int, on_end: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._table, self._sequences, self._cost = table, sequences, cost
        self._copies, self._n_ctx, self._on_end = copies, n_ctx, on_end
        self.parts: dict[int, list[Part]] = {}

    def pays(self, slot: int, parts: list[Part]) -> bool:
        """Whether copying these parts of a row is faster than computing their tokens."""
        copy_ms = self._copies.restore_ms(parts)
        if not copy_ms:
            return True
        whole, known = int(self._table.n_tokens[slot]), parts[-1].end
        saves_ms = predict(self._cost, 0, 0, whole, whole / 2) - predict(
            self._cost, 0, 0, whole - known, (whole + known) / 2
        )
        return saves_ms > copy_ms

    def begin(self, slot: int, parts: list[Part], at_once: bool) -> None:
        """Restore ``parts`` of a row that has got an empty sequence; ``at_once`` what is there."""
        self.parts[slot] = parts
        if at_once:
            self._restore_all(slot)

    def step(self, at_once: bool) -> list[int] | None:
        """Restore a part, or all where that is ``at_once``; return the rows that have all now.

        Return None where there was nothing to restore.
        """
        filled: list[int] | None = None
        for slot in sorted(self.parts, key=lambda slot: int(self._table.lane[slot])):
            if not self._is_there(slot):
                continue
            filled = filled or []
            if at_once:
                self._restore_all(slot)
            else:
                self._restore_one(slot)
            if slot not in self.parts:
                filled.append(slot)
            if not at_once:
                break
        return filled

    def _is_there(self, slot: int) -> bool:
        """Whether the next part of a row is in memory, or will not come."""
        return not any(entry.comes for entry in _needed(self.parts[slot][0]))

    def _restore_all(self, slot: int) -> None:
        """As many parts of a row as are in memory."""
        while slot in self.parts and self._is_there(slot):
            self._restore_one(slot)

    def _restore_one(self, slot: int) -> None:
        """The next part of a row."""
        table, parts = self._table, self.parts[slot]
        part = parts[0]
        if not all(entry.data.size for entry in _needed(part)):
            parts.clear()  # a damaged file, or it was evicted again: it is computed
        elif self._restore(slot, part):
            table.n_past[slot] = part.end
            del parts[0]
        else:  # nobody knows what went wrong: the row begins with nothing
            table.n_past[slot] = 0
            parts.clear()
        table.header.cells_used = cells_used(table)  # no tick may come while a file is read
        if not parts:
            del self.parts[slot]
            self._on_end(slot)

    def _restore(self, slot: int, part: Part) -> bool:
        """Restore a part.  A whole state may be longer than the row: it gets the held cells."""
        held, needed = self._sequences.next_turns, part.entry.p1 + self._table.more_cells[slot]
        while held and not self._copies.cuts:
            if self._n_ctx - cells_used(self._table) - held.cells >= needed:
                break
            self._sequences.let_go(held.oldest())
        return self._copies.restore(int(self._table.seq[slot]), part)

    def check(self) -> None:
        """Raise AssertionError where a row does not wait for what is restored."""
        table = self._table
        for slot, parts in self.parts.items():
            assert table.state[slot] == t.WAITING and table.seq[slot] >= 0
            assert table.n_past[slot] < parts[-1].end


def _needed(part: Part) -> list[Entry]:
    """Entries whose data a part is restored from."""
    return [part.entry] if part.mark is None else [part.entry, part.mark]
