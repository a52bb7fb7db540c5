"""Known beginnings of rows on their way into their sequences, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from umaserve.cache.entry import Entry, Part
from umaserve.engine.cells.accounting import cells_used
from umaserve.policy.cost.model import predict
from umaserve.wire import table as t

from .copies import Pieces, WholeStates

if TYPE_CHECKING:
    from umaserve.engine.cells.sequences import Sequences
    from umaserve.policy.cost.model import CostModel


@dataclass(slots=True)
class Restoring:
    """A row whose known beginning is on its way into its sequence, part by part."""

    slot: int
    parts: list[Part]


class Restorer:
    """``on_end`` hears of each row that has what is known of it.  For the loop's thread."""

    def __init__(
        self, table: t.SessionTable, sequences: Sequences, cost: CostModel,
        copies: Pieces | WholeStates, n_ctx: int, on_end: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._table, self._sequences, self._cost = table, sequences, cost
        self._copies, self._n_ctx, self._on_end = copies, n_ctx, on_end
        self._jobs: list[Restoring] = []

    @property
    def slots(self) -> list[int]:
        """Rows whose beginnings are on their way."""
        return [job.slot for job in self._jobs]

    def pays(self, slot: int, known: int) -> bool:
        """Whether copying so many tokens is faster than computing them."""
        copy_ms = self._copies.restore_ms(known)
        if not copy_ms:
            return True
        whole = int(self._table.n_tokens[slot])
        saves_ms = predict(self._cost, 0, 0, whole, whole / 2) - predict(
            self._cost, 0, 0, whole - known, (whole + known) / 2
        )
        return saves_ms > 0.5 * copy_ms

    def begin(self, slot: int, parts: list[Part], at_once: bool) -> None:
        """Restore ``parts`` of a row that has got an empty sequence; ``at_once`` what is there."""
        job = Restoring(slot, parts)
        self._jobs.append(job)
        if at_once:
            self._restore_all(job)

    def leave(self, slot: int) -> None:
        """The row's sequence is being taken away."""
        self._jobs = [each for each in self._jobs if each.slot != slot]

    def clear(self) -> None:
        """Nothing is restored any more."""
        self._jobs.clear()

    def step(self, at_once: bool) -> list[int] | None:
        """Restore a part, or all where that is ``at_once``; return the rows that have all now.

        Return None where there was nothing to restore.
        """
        filled: list[int] | None = None
        for job in sorted(self._jobs, key=lambda job: int(self._table.lane[job.slot])):
            if not _is_there(job):
                continue
            filled = filled or []
            if at_once:
                self._restore_all(job)
            else:
                self._restore_one(job)
            if job not in self._jobs:
                filled.append(job.slot)
            if not at_once:
                break
        return filled

    def _restore_all(self, job: Restoring) -> None:
        """As many parts of a row as are in memory."""
        while job in self._jobs and _is_there(job):
            self._restore_one(job)

    def _restore_one(self, job: Restoring) -> None:
        """The next part of a row."""
        table, part = self._table, job.parts[0]
        if not all(entry.data.size for entry in _needed(part)):
            job.parts.clear()  # a damaged file, or it was evicted again: it is computed
        elif self._restore(job.slot, part):
            table.n_past[job.slot] = part.end
            del job.parts[0]
        else:  # nobody knows what went wrong: the row begins with nothing
            table.n_past[job.slot] = 0
            job.parts.clear()
        table.header.cells_used = cells_used(table)  # no tick may come while a file is read
        if not job.parts:
            self._jobs.remove(job)
            self._on_end(job.slot)

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
        for job in self._jobs:
            assert table.state[job.slot] == t.WAITING and table.seq[job.slot] >= 0
            assert table.n_past[job.slot] < job.parts[-1].end


def _is_there(job: Restoring) -> bool:
    """Whether the next part of a row is in memory, or will not come."""
    return not any(entry.comes for entry in _needed(job.parts[0]))


def _needed(part: Part) -> list[Entry]:
    """Entries whose data a part is restored from."""
    return [part.entry] if part.mark is None else [part.entry, part.mark]
