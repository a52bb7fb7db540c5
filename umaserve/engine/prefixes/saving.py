"""Texts of rows on their way into the store: while rows run, at their ends, and later."""

from __future__ import annotations

import numpy as np

from umaserve.llama import Context
from umaserve.policy.cost.model import CostModel
from umaserve.policy.cost.prediction import predict
from umaserve.wire import table as t

from .checkpoints import SHARE, Checkpoints
from .copies import Pieces, WholeStates
from .disk_texts import DiskTexts
from .late_texts import WORTH_A_COPY, Text
from .memory_share import MemoryShare
from .row_texts import RowTexts


class Saver:
    """For the loop's thread.  ``saved`` are the tokens of each row that are kept, at most."""

    def __init__(
        self, table: t.SessionTable, cost: CostModel, copies: Pieces | WholeStates,
        texts: RowTexts, files: DiskTexts, share: MemoryShare,
    ) -> None:  # fmt: skip
        self.saved: dict[int, int] = {}
        self.checkpoints: Checkpoints | None = None  # of memory that cannot be cut
        self._table, self._cost, self._copies = table, cost, copies
        self._texts, self._files, self._share = texts, files, share

    @property
    def is_cheap(self) -> bool:
        """Whether copying a piece takes at most `SHARE` of computing it.

        Else nothing is copied while streams wait: most texts are never asked for again.
        """
        copy_ms, step = self._copies.step_ms, self._copies.step
        return not copy_ms or copy_ms <= SHARE * predict(self._cost, 0, 0, step, step / 2)

    @property
    def is_busy(self) -> bool:
        """Whether a piece can be saved before more than one tick runs."""
        if any(map(self._has_piece, self._saved_on_the_way())):
            return True
        return not self._copies.cuts and any(map(self._is_prompt, self._texts.domains))

    def save_awaited(self, awaited: dict[int, int], at_once: bool) -> bool:
        """Save a piece of rows up to tokens that others wait for, or all pieces ``at_once``.

        Return True where this was all for now.
        """
        for slot, upto in list(awaited.items()):
            while self._has_piece(slot, upto) and self._save_one(slot, upto):
                if not at_once:
                    return True
        return False

    def save_running(self, at_once: bool) -> None:
        """Save a piece of a running row, or all pieces of all where that is ``at_once``.

        Where copies are dear, most rows are saved when they are over.
        """
        for slot in self._saved_on_the_way():
            while self._has_piece(slot):
                if not self._save_one(slot):
                    break
                if not at_once:
                    return

    def _saved_on_the_way(self) -> list[int]:
        """Return the rows that are saved while they run.

        Where copies are dear, these are background rows alone, which may be parked, and only while
        no interactive row runs.
        """
        slots, table = list(self._texts.domains), self._table
        if not slots or self.is_cheap:
            return slots
        if ((table.state == t.RUNNING) & (table.lane == 0)).any():
            return []
        return [slot for slot in slots if table.lane[slot]]

    def keep(self, slot: int, at_once: bool = True) -> None:
        """A row is over: save what is not saved yet, while its sequence has its cells.

        ``at_once``: no stream waits meanwhile.
        """
        if slot not in self._texts.domains or not (at_once or self.is_cheap):
            return
        while self._table.n_past[slot] - self.saved.get(slot, 0) >= WORTH_A_COPY:
            if not self._save_one(slot):
                break

    def bring(self, slot: int, other: Context, n_tokens: int) -> bool:
        """Save a piece of the first ``n_tokens``, which an ``other`` context has in sequence 0."""
        is_left = n_tokens - self.saved.get(slot, 0) >= WORTH_A_COPY
        return is_left and self._save_piece(slot, n_tokens, other)

    def save_checkpoints(self, awaited: dict[int, int]) -> None:
        """Save the states of rows that have stopped for it: all of them where no mark can be made.

        None may wait for the next tick, which would take it past its stop.
        """
        table, stops = self._table, self.checkpoints
        for slot in stops.reached() if stops is not None else ():
            if slot not in self._texts.domains or table.isolate[slot]:
                continue
            assert stops is not None
            self._share.look()
            domain, lease = self._texts.domains[slot], self._texts.lease(slot)
            needed = stops.is_first(slot) or awaited.get(slot) == int(table.n_past[slot])
            if needed or not stops.mark(slot, domain, lease):
                self._save_one(slot)
            self._share.tell()

    def _has_piece(self, slot: int, upto: int = 1 << 30) -> bool:
        """Whether a whole piece of a row can be saved, or all up to a token that is awaited."""
        table = self._table
        if table.state[slot] != t.RUNNING or table.isolate[slot]:
            return False
        have, past = self.saved.get(slot, 0), int(table.n_past[slot])
        step = self._copies.step
        if not self._copies.cuts:
            step = max(step, have)  # each holds all: so few are made of a long text
        return past - have >= step or past >= upto > have

    def _is_prompt(self, slot: int) -> bool:
        """Whether the row's prompt is being computed, whose states can only be saved on the way."""
        table = self._table
        is_left = table.n_past[slot] < table.n_prompt[slot] - 1
        return bool(table.state[slot] == t.RUNNING and is_left)

    def _save_one(self, slot: int, upto: int = 1 << 30) -> bool:
        """Save the next piece of a row; False where nothing more can be kept of it now."""
        return self._save_piece(slot, min(int(self._table.n_past[slot]), upto))

    def _save_piece(self, slot: int, past: int, other: Context | None = None) -> bool:
        """Save the next piece of the first ``past`` tokens; False where no more can be kept now."""
        self.saved[slot] = past  # until it is kept: what fails once is not tried again
        text = self.text(slot, past)
        if other is not None:
            text.seq = 0
        kept = self.save(text, other)
        if not kept:
            return False
        self.saved[slot] = kept
        if self.checkpoints is not None and other is None and kept == self._table.n_past[slot]:
            self.checkpoints.mark(slot, text.domain, text.lease, is_saved=True)
        return True

    def text(self, slot: int, past: int) -> Text:
        """The first ``past`` tokens of a row."""
        table, texts = self._table, self._texts
        return Text(
            texts.domains[slot], table.tokens[slot, :past], int(table.seq[slot]),
            int(table.n_prompt[slot]), texts.lease(slot), slot not in texts.alone,
            int(table.more_cells[slot]),
        )  # fmt: skip

    def save_ms(self, text: Text) -> float:
        """Estimated ms of `save`; 0 where it is cheap."""
        p0, p1 = self._next(text)
        return self._copies.save_ms(text.seq, p0, p1, text.n_prompt) if p1 > p0 else 0.0

    def _next(self, text: Text) -> tuple[int, int]:
        """Return the ends of the next piece of a text."""
        p1 = text.tokens.size
        if not self._copies.cuts:
            return 0, p1
        parts = self._copies.store.match(text.domain, text.tokens)
        p0 = parts[-1].end if parts else 0
        return p0, beside_pictures(text.tokens, p0, min(p0 + self._copies.step, p1))

    def save(self, text: Text, other: Context | None = None) -> int:
        """Save the next piece of a text; returns the tokens kept, 0 = no more can be kept now."""
        domain, copies = text.domain, self._copies
        p0, p1 = self._next(text)
        if p1 <= p0:
            return 0
        self._share.look()
        cost_ms = predict(self._cost, 0, 0, text.cells(p0, p1), (p0 + p1) / 2)
        save_ms = 0.0 if other else copies.save_ms(text.seq, p0, p1, text.n_prompt)
        if 0.0 < cost_ms < 2.0 * save_ms:  # it has to come back as well
            return 0
        data: np.ndarray | None = copies.save(text.seq, p0, p1, other)
        entry = data is not None and copies.store.add(
            domain, text.tokens[:p1], p0, data, cost_ms, text.lease
        )
        if entry and text.is_shared:
            self._files.put(entry, domain, text.tokens[:p1])
        self._share.tell()
        return p1 if entry else 0


def beside_pictures(tokens: np.ndarray, p0: int, p1: int) -> int:
    """Return where a piece from ``p0`` ends, so that ``p1`` cuts no picture in two.

    With M-RoPE all cells of a picture are at its first position.
    """
    end = p1
    while end > p0 and tokens[end - 1] < t.NOT_YET:
        end -= 1
    if end > p0:
        return end
    behind = np.flatnonzero(tokens[p1:] >= t.NOT_YET)
    return p1 + int(behind[0]) + 1 if behind.size else p0
