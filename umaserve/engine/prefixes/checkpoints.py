"""Stops in prompts at which the states of rows are saved, for memory that cannot be cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umaserve.cache.entry import Entry, Part
from umaserve.cache.whole import MARK, checkpoints
from umaserve.engine.model.loaded import Loaded
from umaserve.policy.cost.model import CostModel
from umaserve.policy.cost.prediction import predict
from umaserve.wire import table as t

from .copies import WholeStates

SHARE = 0.1  # of the time of computing some tokens, at most, for copying them beside streams
LAST_SHARE = 0.5  # at a prompt's last stop, where the next turn goes on


class Checkpoints:
    """For the loop's thread, between ticks.  The column ``checkpoint`` says where a row stops."""

    def __init__(
        self, loaded: Loaded, table: t.SessionTable, cost: CostModel, copies: WholeStates,
        to_disk: Callable[[Entry, str, np.ndarray], None],
    ) -> None:  # fmt: skip
        self._table, self._cost, self._copies, self._to_disk = table, cost, copies, to_disk
        self._ends = loaded.eog_ids
        self._stops: dict[int, list[int]] = {}  # by slot
        self._firsts: dict[int, int] = {}  # by slot: the first stop of a text that is new

    def begin(self, slot: int, tokens: np.ndarray, known: int) -> None:
        """Choose stops in ``tokens`` (int32), a row's prompt with ``known`` tokens."""
        stops = checkpoints(tokens, self._ends, known)
        self._stops[slot] = stops
        self._firsts[slot] = stops[0] if stops and not known else 0
        self._stop_next(slot)

    def forget(self, slot: int) -> None:
        """Forget the stops of a row that gets another request."""
        self._stops.pop(slot, None)

    def before(self, slot: int, end: int) -> int:
        """Return the last stop of a row that is still to come and has at most ``end`` tokens.

        Return 0 where there is none.
        """
        return max((at for at in self._stops.get(slot, ()) if at <= end), default=0)

    def reached(self) -> list[int]:
        """Return the rows that have just stopped, and let them go on to their next stop."""
        table, found = self._table, []
        for slot in list(self._stops):
            at = int(table.checkpoint[slot])
            if at and table.n_past[slot] >= at and table.state[slot] == t.RUNNING:
                if table.n_past[slot] == at:
                    found.append(slot)
                self._stop_next(slot)
        return found

    def is_first(self, slot: int) -> bool:
        """Return whether the row stands at its first stop, which other texts may share."""
        return bool(self._table.n_past[slot] == self._firsts[slot])

    def last(self, domain: str, tokens: np.ndarray) -> Entry | None:
        """Return the last mark of the beginnings of ``tokens`` (int32), which held cells have.

        None where there is none, or its copy takes longer than computing its tokens.
        """
        mark = self._copies.texts.last_mark(domain, tokens)
        if mark is not None:
            computing_ms = predict(self._cost, 0, 0, mark.p1, mark.p1 / 2)
            if self._copies.restore_ms([Part(mark, mark.p1)]) <= computing_ms:
                return mark
        return None

    def rewind(self, seq: int, mark: Entry, last: int) -> bool:
        """Take a sequence with a longer text back to a mark; `WholeStates.rewind`."""
        self._copies.texts.use([Part(mark, mark.p1)])
        return self._copies.rewind(seq, mark, last)

    def _stop_next(self, slot: int) -> None:
        table, stops = self._table, self._stops[slot]
        while stops and stops[0] <= table.n_past[slot]:
            del stops[0]
        table.checkpoint[slot] = stops[0] if stops else 0

    def mark(self, slot: int, domain: str, lease: float, is_saved: bool = False) -> bool:
        """Keep what of a row cannot be cut; False where only whole states can be kept.

        On an accelerator a mark is left out where its copy takes long beside computing the tokens
        since the last state or mark.  ``is_saved``: the row's state was saved just now, so the mark
        only makes room for a longer state.
        """
        if not self._copies.has_marks:
            return False
        table, copies, store = self._table, self._copies, self._copies.texts
        seq, past = int(table.seq[slot]), int(table.n_past[slot])
        tokens = table.tokens[slot, :past]
        known = 0 if is_saved else store.usable(domain, tokens)
        cost_ms = predict(self._cost, 0, 0, past - known, (known + past) / 2)
        share = SHARE if is_saved or self._stops.get(slot) else LAST_SHARE
        if copies.mark_ms(seq) > share * cost_ms > 0.0:
            return True
        data = copies.mark(seq)
        entry = None if data is None else store.mark(domain, tokens, data, cost_ms, lease)
        if entry is not None:
            self._to_disk(entry, MARK + domain, tokens)
        return True
