"""Prompts whose beginning is known: saved from the KV cache, and copied back into it.

`umaserve.cache` knows which texts are kept; here libllama saves and restores their cells.  A row's
cells are saved while it runs, a piece at a time between two ticks, and the rest at its end
(`Saver`).  What is known of a prompt is copied into the row's sequence before the row runs
(`Restorer`).  A prompt that begins as one that is being computed waits until that beginning is
there.  A row's cells are its own at all times: copies are made, and nothing is shared.  A row that
is parked leaves its text here too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from umaserve.cache.entry import Part, common
from umaserve.cache.next_turn import Ended
from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.model.abilities import can_be_saved, why_not_plain
from umaserve.engine.model.loaded import Setup
from umaserve.llama import Context
from umaserve.policy.cost.model import CostModel
from umaserve.wire import table as t

from .checkpoints import Checkpoints
from .copies import Pieces, WholeStates
from .disk_texts import DiskTexts
from .late_texts import REST_S, WORTH_A_COPY, Late, LateTexts
from .memory_share import MemoryShare, most_of
from .report import PrefixReport
from .restoring import Restorer
from .row_texts import LEASE, RowTexts
from .saving import Saver

CLOSE_S = 1.0  # for texts that are not saved yet
WORTH_A_WAIT = 32  # tokens that a prompt being computed has to save another


class Prefixes:
    """For the loop's thread, between ticks."""

    def __init__(self, setup: Setup, sequences: Sequences, cost: CostModel) -> None:
        loaded, table = setup.loaded, setup.table
        self._table = table
        most = most_of(setup.start.cache_bytes)
        cuts = not (why_off := why_not_plain(loaded))
        if cuts or can_be_saved(loaded):
            why_off = "" if most else "--cache-ram is off"
        self.is_on = not why_off and loaded.generates
        most = most if self.is_on else 0
        copies: Pieces | WholeStates = Pieces(loaded, most) if cuts else WholeStates(loaded, most)
        self.cuts = copies.cuts  # a sequence can be cut anywhere
        self.store = copies.store
        self.report = PrefixReport(self.store, why_off, table.header)
        self._share = MemoryShare(self.store, most, self.report.tell)
        self.look_at_memory = self._share.look
        self.files = DiskTexts(setup, self.store, self.is_on)
        self._texts = RowTexts(table)
        self._awaited: dict[int, int] = {}  # rows that others wait for: up to which token
        self._saver = Saver(table, cost, copies, self._texts, self.files, self._share)
        self.keep = self._saver.keep
        self.late = LateTexts(sequences.next_turns, self._saver.save, self._saver.save_ms)
        self.checkpoints: Checkpoints | None = None  # where memory cannot be cut
        if isinstance(copies, WholeStates):
            self.checkpoints = Checkpoints(loaded, table, cost, copies, self.files.put)
        self._saver.checkpoints = self.checkpoints
        self._restorer = Restorer(table, sequences, cost, copies, loaded.n_ctx, self._restored)

    def arrive(self, slot: int, domain: str | None, session: bool = False) -> None:
        """A request has got a row; ``domain``: who may share its text, None = nobody.

        ``session``: it belongs to a session, which has a lease on what it leaves.
        """
        self.unpark(slot)  # it was cancelled before it ran
        self._saver.saved.pop(slot, None)
        if self._saver.checkpoints is not None:
            self._saver.checkpoints.forget(slot)
        self._texts.arrive(slot, domain if self.is_on else None, session)

    def admitted(self, slot: int, cached: int) -> None:
        """A row runs for the first time, with so many tokens that were known."""
        if not self.is_on:
            return
        table, domain = self._table, self.domain(slot)
        tokens = table.tokens[slot, : max(int(table.n_prompt[slot]), 0)]
        self.report.note(int(table.serial[slot]), domain, tokens, cached)
        if domain is not None:
            if self._saver.checkpoints is not None:
                self._saver.checkpoints.begin(slot, tokens, cached)
            table.header.cache_asked += 1
            table.header.cache_hits += cached > 0

    def domain(self, slot: int) -> str | None:
        """Trust domain that may share a row's text; None = nobody may."""
        return self._texts.domains.get(slot)

    def forget(self, slot: int) -> None:
        """Nothing more of this row is to be kept."""
        self.unpark(slot)
        self._saver.saved.pop(slot, None)
        self._texts.domains.pop(slot, None)
        self._awaited.pop(slot, None)

    def park(self, slot: int) -> None:
        """A row is about to give its cells up: save what is not saved yet.

        A text that nobody may share has a domain of its own until `unpark`, in memory alone.
        """
        if not self.is_on:
            return
        self._texts.name(slot)
        self._saver.saved.pop(slot, None)  # what failed once is tried again
        self.keep(slot)
        self.store.use(self.known(slot), LEASE)  # it is wanted again for sure

    def bring(self, slot: int, other: Context, n_tokens: int) -> bool:
        """Save a piece of what an ``other`` context has computed of a row that does not run yet.

        Its sequence 0 has the first ``n_tokens``.  False where nothing more can be kept.  A text
        that nobody may share is kept as that of a parked row.
        """
        if not self.is_on:
            return False
        self._texts.name(slot)
        return self._saver.bring(slot, other, n_tokens)

    def unpark(self, slot: int) -> None:
        """A row runs, or is over, that was parked or rated: nothing stays for nobody else."""
        domain = self._texts.unname(slot)
        if domain is not None:
            self.store.drop(domain)
            self.report.tell()

    def known(self, slot: int) -> list[Part]:
        """Parts kept of a row's text, but for its last token, which has to be computed."""
        domain = self.domain(slot)
        if domain is None:
            return []
        parts = self.store.match(domain, self._texts.tokens(slot))
        return parts if parts and parts[-1].end >= WORTH_A_COPY else []

    def note(self, slot: int) -> None:
        """Say in the table what is known of a row that waits for the first time."""
        if not self._table.t_admit_ns[slot]:
            parts = self.known(slot)
            self._table.cached[slot] = parts[-1].end if parts else 0

    def nobody_waits(self) -> None:
        """No row is waited for any more."""
        self._awaited.clear()

    def followers(self) -> set[int]:
        """Rows that had better wait for others, which compute what they begin with."""
        table = self._table
        self._awaited.clear()
        if not self.is_on:
            return set()
        states, domains = table.state.tolist(), self._texts.domains
        waiting = [s for s in domains if states[s] == t.WAITING and table.seq[s] < 0]
        leaders = [s for s in domains if states[s] == t.RUNNING and not table.isolate[s]]
        return {slot for slot in waiting if leaders and self._follows(slot, leaders)}

    def _follows(self, slot: int, leaders: list[int]) -> bool:
        table, domains = self._table, self._texts.domains
        tokens, stops = self._texts.tokens(slot), self._saver.checkpoints
        parts = self.store.match(domains[slot], tokens)
        have = parts[-1].end if parts else 0
        for leader in leaders:
            if domains[leader] != domains[slot] or table.lane[leader] > table.lane[slot]:
                continue
            shared = common(table.tokens[leader, : int(table.n_tokens[leader])], tokens)
            if stops is not None:
                shared = stops.before(leader, shared)
            # what was saved up to there and is not kept has no room: nobody waits for that
            is_to_come = self._saver.saved.get(leader, 0) < shared
            if is_to_come and shared - have >= WORTH_A_WAIT:
                self._awaited[leader] = max(shared, self._awaited.get(leader, 0))
                return True
        return False

    def begin(self, slot: int, at_once: bool) -> bool:
        """Restore what is known of a row that has got an empty sequence.

        ``at_once``, or piece by piece in `step`.  False while pieces are left.
        """
        parts = self._known_and_held(slot)
        if not parts or not self._restorer.pays(slot, parts):
            return True
        self.store.use(parts, self._texts.lease(slot))
        for part in parts:
            part.entry.hits += 1
        self.files.fetch(parts, self._texts.domains[slot])
        self._restorer.begin(slot, parts, at_once)
        return slot not in self._restorer.parts

    def _known_and_held(self, slot: int) -> list[Part]:
        """`known`, with what a held text has of it: that is saved now."""
        parts = self.known(slot)
        domain, kept = self.domain(slot), parts[-1].end if parts else 0
        if domain is None:
            return parts
        tokens = self._texts.tokens(slot)
        tokens = tokens[: self.store.usable(domain, tokens)]
        is_more = self.late.save_beginning(domain, tokens, kept, WORTH_A_WAIT)
        return self.known(slot) if is_more else parts

    def _restored(self, slot: int) -> None:
        self._saver.saved[slot] = int(self._table.n_past[slot])

    def went_on(self, slot: int) -> None:
        """A row goes on in the cells of the turn before."""
        if not self.cuts:
            self._restored(slot)

    def leave(self, slot: int) -> None:
        """The row's sequence is being taken away."""
        self._restorer.parts.pop(slot, None)
        self._saver.saved.pop(slot, None)

    def keep_later(self, slot: int, ended: Ended) -> None:
        """A row is over whose cells are about to be held as ``ended``: save its rest from these."""
        if self.domain(slot) is not None and slot not in self._texts.alone:
            text = self._saver.text(slot, ended.tokens.size)
            text.tokens = ended.tokens
            lane, is_dear = int(self._table.lane[slot]), not self._saver.is_cheap
            self.late.put(Late(ended, text, lane != 0, is_dear))

    def save_late(self, wanted: Callable[[], object]) -> None:
        """Save held texts in a pause, until something is ``wanted``."""
        if self.late.rests:
            self.late.save_all(lambda: wanted() or self.files.shelf.is_full)

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do before more than one tick runs."""
        is_copying = self.files.shelf.has_news or self._restorer.parts or self._awaited
        return bool(is_copying) or self.late.is_due or self._saver.is_busy

    def step(self, at_once: bool, may_save: bool) -> list[int]:
        """Restore and save a piece, or all where that is ``at_once``.

        Returns the rows that have what is known of them now.
        """
        self.files.tell_problem()
        if self.files.shelf.has_news:
            self.files.take()
            self.report.tell()
        self._saver.save_checkpoints(self._awaited)
        filled = self._restorer.step(at_once)
        if at_once or filled is None:
            self._save(at_once, may_save)
        return filled or []

    def _save(self, at_once: bool, may_save: bool) -> None:
        if self._saver.save_awaited(self._awaited, at_once):
            return
        # where copies are dear, no request that is about to begin waits for one
        now = self.late.is_left and may_save and self._saver.is_cheap
        if now or self.late.is_due:
            self.late.step(background=now, saves=now or not at_once)
        if may_save:
            self._saver.save_running(at_once)

    def idle_ms(self) -> int | None:
        """How long an idle engine may sleep, before it saves held texts too; None = for ever."""
        return int(1000 * REST_S) if self.late.is_left else self._share.idle_ms

    def close(self) -> None:
        """Write to disk what waits for it."""
        if self.files.shelf.folder is not None:
            until = time.monotonic() + CLOSE_S
            self.late.save_all(lambda: time.monotonic() > until or self.files.shelf.is_full)
            self.files.shelf.close()

    def check(self) -> None:
        """Raises AssertionError where what is kept contradicts itself, or the rows."""
        self.store.check()
        self._restorer.check()
        table = self._table
        for slot in self._texts.alone:
            # it waits, or was rated and is about to
            waits = table.serial[slot] and table.state[slot] in (t.FREE, t.WAITING)
            assert waits, f"row {slot} has a text of its own, and waits for nothing"
        for slot, saved in self._saver.saved.items():
            assert saved <= table.n_tokens[slot], f"row {slot} has fewer tokens than are kept"

    def clear(self) -> list[int]:
        """Forget all that is kept, and what is on its way; returns the rows that waited for it."""
        slots = list(self._restorer.parts)
        self.files.clear()
        self._restorer.parts.clear()
        self._awaited.clear()
        self._saver.saved.clear()
        self.late.clear()
        for slot in list(self._texts.alone):
            self.unpark(slot)
        self.store.clear()
        self.report.tell()
        return slots
