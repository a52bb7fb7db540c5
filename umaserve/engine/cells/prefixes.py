"""Prompts whose beginning is known: saved from the KV cache, and copied back into it.

`umaserve.cache.tree` knows which texts are kept; here libllama saves and restores their cells.  A
row's cells are saved while it runs, a piece at a time between two ticks, and the rest at its end.
What is known of a prompt is copied into the row's sequence before the row runs.  A prompt that
begins as one that is being computed waits until that beginning is there.  A row's cells are its
own at all times: copies are made (`umaserve.engine.cells.copies`), and nothing is shared.  A row
that is parked leaves its text here too.

Long: a row's way out of the cache and into it, which share what is known of the row.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from umaserve.cache import disk
from umaserve.cache.tree import MEMORY, NOTHING, Entry, Part, PrefixTree
from umaserve.cache.whole import MARK, WholeTexts
from umaserve.engine.model.abilities import can_be_saved, why_not_plain
from umaserve.models.needs import available_bytes, total_bytes
from umaserve.policy.cost.model import predict
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .accounting import cells_used
from .checkpoints import Checkpoints
from .copies import Pieces, WholeStates
from .late_texts import WORTH_A_COPY, LateTexts, Text
from .prefix_report import PrefixReport

if TYPE_CHECKING:
    from umaserve.cache.next_turn import Ended
    from umaserve.engine.model.loaded import Loaded
    from umaserve.llama import Context
    from umaserve.policy.cost.model import CostModel

    from .sequences import Sequences
    from .shelf import Shelf

WORTH_A_WAIT = 32  # tokens that a prompt being computed has to save another
SHARE = 4  # of the machine's memory, one part in so many may be taken by default
RESERVE = 16  # of the machine's memory, one part in so many stays free
LOOK_S = 1.0  # how often to ask what memory is free
IDLE_LOOK_MS = 10_000  # the same while nobody asks anything
LATE_MS = 1000  # without a request, before held texts are saved
AUTO = -1
LEASE = 4.0  # times as much what a session has is worth, and a part so large what is in background


@dataclass(slots=True)
class Restoring:
    """A row whose known beginning is on its way into its sequence, part by part."""

    slot: int
    parts: list[Part]


class Prefixes:
    """For the loop's thread, between ticks.  ``most_bytes``: 0 = nothing is kept, AUTO = by what
    is free."""

    def __init__(
        self, loaded: Loaded, table: t.SessionTable, sequences: Sequences, cost: CostModel,
        most_bytes: int, shelf: Shelf | None = None,
    ) -> None:  # fmt: skip
        self._table, self._cost, self._sequences = table, cost, sequences
        self._n_ctx = loaded.n_ctx
        self._asked = total_bytes() // SHARE if most_bytes == AUTO else most_bytes
        cuts = not (why_off := why_not_plain(loaded))
        if cuts or can_be_saved(loaded):
            why_off = "" if self._asked else "--cache-ram is off"
        self.is_on = not why_off and loaded.generates
        most = self._asked if self.is_on else 0
        self._copies: Pieces | WholeStates = (
            Pieces(loaded, most) if cuts else WholeStates(loaded, most)
        )
        self.store = self._copies.store
        self._shelf = shelf
        self.report = PrefixReport(self.store, why_off, table.header)
        self._looked_s = 0.0
        self._domains: dict[int, str] = {}  # of rows whose text may be kept, by slot
        self._saved: dict[int, int] = {}  # tokens of a row that are kept, at most
        self._restoring: list[Restoring] = []
        self._awaited: dict[int, int] = {}  # rows that others wait for: up to which token
        self._leases: dict[int, float] = {}  # of rows: what their text is worth to those who ask
        self._alone: set[int] = set()  # parked or rated rows whose text is for nobody else
        self._secret = secrets.token_hex(8)  # no client's session has such a name
        copies = self._copies
        self.late = LateTexts(sequences.next_turns, self._save)
        self._checkpoints = (
            Checkpoints(loaded, table, cost, copies, self._to_disk)
            if isinstance(copies, WholeStates) else None
        )

    # --- rows ------------------------------------------------------------------------------------

    def arrive(self, slot: int, domain: str | None, session: bool = False) -> None:
        """A request has got a row; ``domain``: who may share its text, None = nobody.

        ``session``: it belongs to a session, which has a lease on what it leaves.
        """
        self.unpark(slot)  # it was cancelled before it ran
        self._saved.pop(slot, None)
        if self._checkpoints is not None:
            self._checkpoints.forget(slot)
        self._leases[slot] = LEASE if session else 1.0
        if self.is_on and domain is not None:
            self._domains[slot] = domain
        else:
            self._domains.pop(slot, None)

    def admitted(self, slot: int, cached: int) -> None:
        """A row runs for the first time, with so many tokens that were known."""
        if not self.is_on:
            return
        table, domain = self._table, self._domains.get(slot)
        tokens = table.tokens[slot, : max(int(table.n_prompt[slot]), 0)]
        self.report.note(int(table.serial[slot]), domain, tokens, cached)
        if domain is not None and self._checkpoints is not None:
            self._checkpoints.begin(slot, tokens, cached)
        if domain is not None:
            table.header.cache_asked += 1
            table.header.cache_hits += cached > 0

    def domain(self, slot: int) -> str | None:
        """Trust domain that may share a row's text; None = nobody may."""
        return self._domains.get(slot)

    def forget(self, slot: int) -> None:
        """Nothing more of this row is to be kept."""
        self.unpark(slot)
        self._saved.pop(slot, None)
        self._domains.pop(slot, None)
        self._awaited.pop(slot, None)

    def park(self, slot: int) -> None:
        """A row is about to give its cells up: save what is not saved yet.

        A text that nobody may share has a domain of its own until `unpark`, in memory alone.
        """
        if not self.is_on:
            return
        self._name(slot)
        self._saved.pop(slot, None)  # what failed once is tried again
        self.keep(slot)
        self.store.use(self.known(slot), LEASE)  # it is wanted again for sure

    def bring(self, slot: int, other: Context, n_tokens: int) -> bool:
        """Save a piece of what an ``other`` context has computed of a row that does not run yet.

        Its sequence 0 has the first ``n_tokens``.  False where nothing more can be kept.  A text
        that nobody may share is kept as that of a parked row.
        """
        if not self.is_on:
            return False
        self._name(slot)
        is_left = n_tokens - self._saved.get(slot, 0) >= WORTH_A_COPY
        return is_left and self._save_piece(slot, n_tokens, other)

    def _name(self, slot: int) -> None:
        """See to it that what is kept of a row has a domain."""
        if slot not in self._domains:
            serial = int(self._table.serial[slot])
            self._domains[slot] = f"{m.ALONE}parked {self._secret} {serial}"
            self._alone.add(slot)

    def unpark(self, slot: int) -> None:
        """A row runs, or is over, that was parked or rated: nothing stays for nobody else."""
        if slot in self._alone:
            self._alone.discard(slot)
            self.store.drop(self._domains.pop(slot))
            self.report.tell()

    def known(self, slot: int) -> list[Part]:
        """Parts kept of a row's text, but for its last token, which has to be computed."""
        domain = self._domains.get(slot)
        if domain is None:
            return []
        tokens = self._table.tokens[slot, : int(self._table.n_tokens[slot]) - 1]
        parts = self.store.match(domain, tokens)
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
        states = table.state.tolist()
        waiting = [s for s in self._domains if states[s] == t.WAITING and table.seq[s] < 0]
        leaders = [s for s in self._domains if states[s] == t.RUNNING and not table.isolate[s]]
        return {slot for slot in waiting if leaders and self._follows(slot, leaders)}

    def _follows(self, slot: int, leaders: list[int]) -> bool:
        table, domain = self._table, self._domains[slot]
        tokens = table.tokens[slot, : int(table.n_tokens[slot]) - 1]
        parts = self.store.match(domain, tokens)
        have = parts[-1].end if parts else 0
        for leader in leaders:
            if self._domains[leader] != domain or table.lane[leader] > table.lane[slot]:
                continue
            theirs = table.tokens[leader, : int(table.n_tokens[leader])]
            n = min(tokens.size, theirs.size)
            differ = np.flatnonzero(tokens[:n] != theirs[:n])
            shared = int(differ[0]) if differ.size else n
            if self._checkpoints is not None:
                shared = self._checkpoints.before(leader, shared)
            # what was saved up to there and is not kept has no room: nobody waits for that
            is_to_come = self._saved.get(leader, 0) < shared
            if is_to_come and shared - have >= WORTH_A_WAIT:
                self._awaited[leader] = max(shared, self._awaited.get(leader, 0))
                return True
        return False

    # --- into the cache --------------------------------------------------------------------------

    def begin(self, slot: int, at_once: bool) -> bool:
        """Restore what is known of a row that has got an empty sequence.

        ``at_once``, or piece by piece in `step`.  False while pieces are left.
        """
        parts = self._known_and_held(slot)
        if not parts or not self._pays(slot, parts[-1].end):
            return True
        self.store.use(parts, self._lease(slot))
        for part in parts:
            part.entry.hits += 1
        self._restoring.append(Restoring(slot, parts))
        if self._shelf is not None:
            domain = self._domains[slot]
            needed = [(part.entry, domain) for part in parts]
            needed += [(part.mark, MARK + domain) for part in parts if part.mark is not None]
            self._shelf.fetch(
                (entry, kept_as(entry, name)) for entry, name in needed if not entry.data.size
            )
        if at_once:
            self._restore_all(self._restoring[-1])
        return not self.fills(slot)

    def _known_and_held(self, slot: int) -> list[Part]:
        """`known`, with what a held text has of it: that is saved now."""
        parts = self.known(slot)
        domain, kept = self._domains.get(slot), parts[-1].end if parts else 0
        if domain is None:
            return parts
        tokens = self._table.tokens[slot, : int(self._table.n_tokens[slot]) - 1]
        if isinstance(self.store, WholeTexts):  # of a longer state only what has a mark is of use
            tokens = tokens[: self.store.last(domain, tokens)]
        is_more = self.late.save_beginning(domain, tokens, kept, WORTH_A_WAIT)
        return self.known(slot) if is_more else parts

    def _lease(self, slot: int) -> float:
        """How many times its cost a row's text is worth: a session's more, in background less."""
        lease = self._leases.get(slot, 1.0)
        return lease / LEASE if self._table.lane[slot] else lease

    def fills(self, slot: int) -> bool:
        """Whether pieces of this row are on their way."""
        return any(each.slot == slot for each in self._restoring)

    @property
    def cuts(self) -> bool:
        """Whether a sequence can be cut anywhere."""
        return self._copies.cuts

    def went_on(self, slot: int) -> None:
        """A row goes on in the cells of the turn before."""
        if not self.cuts:
            self._saved[slot] = int(self._table.n_past[slot])

    def save_late(self, wanted: Callable[[], object] = lambda: False) -> None:
        """Save held texts, until something is ``wanted``."""
        while self.late.is_left and not wanted():
            self.late.step(True)

    def leave(self, slot: int) -> None:
        """The row's sequence is being taken away."""
        self._restoring = [each for each in self._restoring if each.slot != slot]
        self._saved.pop(slot, None)

    def _pays(self, slot: int, known: int) -> bool:
        """Whether copying so many tokens is faster than computing them."""
        copy_ms = self._copies.restore_ms(known)
        if not copy_ms:
            return True
        whole = int(self._table.n_tokens[slot])
        saves_ms = predict(self._cost, 0, 0, whole, whole / 2) - predict(
            self._cost, 0, 0, whole - known, (whole + known) / 2
        )
        return saves_ms > 0.5 * copy_ms

    def _restore_all(self, job: Restoring) -> None:
        """As many parts of a row as are in memory."""
        while job in self._restoring and self._is_there(job):
            self._restore_one(job)

    def _is_there(self, job: Restoring) -> bool:
        """Whether the next part of a row is in memory, or will not come."""
        return all(entry.data.size or not entry.path for entry in _needed(job.parts[0]))

    def _restore_one(self, job: Restoring) -> bool:
        """The next part of a row; True where it has all that there is."""
        table, part = self._table, job.parts[0]
        if not all(entry.data.size for entry in _needed(part)):  # a damaged file: it is computed
            job.parts.clear()
        elif self._restore(int(table.seq[job.slot]), part):
            table.n_past[job.slot] = part.end
            del job.parts[0]
        else:  # nobody knows what went wrong: the row begins with nothing
            table.n_past[job.slot] = 0
            job.parts.clear()
        if job.parts:
            return False
        self._restoring.remove(job)
        self._saved[job.slot] = int(table.n_past[job.slot])
        return True

    def _restore(self, seq: int, part: Part) -> bool:
        """Restore a part.  A whole state may be longer than the row: it gets the held cells."""
        held = self._sequences.next_turns
        while held and not self.cuts:
            if self._n_ctx - cells_used(self._table) - held.cells >= part.entry.p1:
                break
            self._sequences.let_go(held.oldest())
        return self._copies.restore(seq, part)

    # --- between ticks ---------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do before more than one tick runs."""
        if self._shelf is not None and self._shelf.has_news:
            return True
        if self._restoring or self._awaited or self.late.is_due:
            return True
        if any(map(self._has_piece, self._domains)):
            return True
        return not self._copies.cuts and any(map(self._is_prompt, self._domains))

    def step(self, at_once: bool, may_save: bool) -> list[int]:
        """Restore and save a piece, or all where that is ``at_once``.

        Returns the rows that have what is known of them now.
        """
        self._take_from_disk()
        table = self._table
        for slot in self._checkpoints.reached() if self._checkpoints is not None else ():
            if slot in self._domains and not table.isolate[slot]:
                self._save_checkpoint(slot)
                if not at_once:
                    return []
        filled = []
        for job in sorted(self._restoring, key=lambda job: int(self._table.lane[job.slot])):
            if not self._is_there(job):
                continue
            if at_once:
                self._restore_all(job)
            else:
                self._restore_one(job)
            if job not in self._restoring:
                filled.append(job.slot)
            if not at_once:
                return filled
        for slot, upto in list(self._awaited.items()):
            while self._has_piece(slot, upto) and self._save_one(slot, upto):
                if not at_once:
                    return filled
        self.late.step(may_save)
        for slot in list(self._domains) if may_save else ():
            while self._has_piece(slot) and not self._disturbs(slot, at_once):
                if not self._save_one(slot):
                    break
                if not at_once:
                    return filled
        return filled

    def _disturbs(self, slot: int, at_once: bool) -> bool:
        """Whether saving a background row would make streams later than their cap allows.

        A piece takes 20 ms on an accelerator, where a large model's tick takes 4.
        """
        return not at_once and self._table.lane[slot] != 0 and self._copies.restore_ms(1) > 0.0

    def keep(self, slot: int, at_once: bool = True) -> None:
        """A row is over: save what is not saved yet, while its sequence has its cells.

        ``at_once``: no stream waits meanwhile.
        """
        if slot not in self._domains or self._disturbs(slot, at_once):
            return
        while self._table.n_past[slot] - self._saved.get(slot, 0) >= WORTH_A_COPY:
            if not self._save_one(slot):
                break

    def keep_later(self, slot: int, ended: Ended) -> None:
        """A row is over whose cells are about to be held as ``ended``: save its rest from these."""
        if slot in self._domains and slot not in self._alone:
            text = self._text(slot, ended.tokens.size)
            text.tokens = ended.tokens
            self.late.put(text, ended, bool(self._table.lane[slot]))

    def _save_checkpoint(self, slot: int) -> None:
        """Save the state of a row that has stopped for it: all of it where no mark can be made."""
        assert self._checkpoints is not None
        self.look_at_memory()
        domain, lease = self._domains[slot], self._lease(slot)
        past = int(self._table.n_past[slot])
        needed = self._checkpoints.is_first(slot) or self._awaited.get(slot) == past
        if needed or not self._checkpoints.mark(slot, domain, lease):
            self._save_one(slot)
        self.report.tell()

    def _has_piece(self, slot: int, upto: int = 1 << 30) -> bool:
        """Whether a whole piece of a row can be saved, or all up to a token that is awaited."""
        table = self._table
        if table.state[slot] != t.RUNNING or table.isolate[slot]:
            return False
        have, past = self._saved.get(slot, 0), int(table.n_past[slot])
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
        """Save the next piece of the first ``past`` tokens; False where no more can be kept now.

        An ``other`` context has these tokens in sequence 0.
        """
        table = self._table
        self._saved[slot] = past  # until it is kept: what fails once is not tried again
        text = self._text(slot, past)
        if other is not None:
            text.seq = 0
        kept = self._save(text, other)
        if not kept:
            return False
        self._saved[slot] = kept
        if self._checkpoints is not None and other is None and kept == table.n_past[slot]:
            self._checkpoints.mark(slot, text.domain, text.lease)
        return True

    def _text(self, slot: int, past: int) -> Text:
        """The first ``past`` tokens of a row."""
        table = self._table
        return Text(
            self._domains[slot], table.tokens[slot, :past], int(table.seq[slot]),
            int(table.n_prompt[slot]), self._lease(slot), slot not in self._alone,
        )  # fmt: skip

    def _save(self, text: Text, other: Context | None = None) -> int:
        """Save the next piece of a text; returns the tokens kept, 0 = no more can be kept now."""
        domain, copies = text.domain, self._copies
        p0, p1 = 0, text.tokens.size
        if copies.cuts:
            parts = self.store.match(domain, text.tokens)
            p0 = parts[-1].end if parts else 0
            p1 = min(p0 + copies.step, p1)
        if p1 <= p0:
            return 0
        self.look_at_memory()
        cost_ms = predict(self._cost, 0, 0, p1 - p0, (p0 + p1) / 2)
        save_ms = 0.0 if other else copies.save_ms(text.seq, p0, p1, text.n_prompt)
        if 0.0 < cost_ms < save_ms:
            return 0
        data = copies.save(text.seq, p0, p1, other)
        entry = data is not None and self.store.add(
            domain, text.tokens[:p1], p0, data, cost_ms, text.lease
        )
        if entry and text.is_shared:
            self._to_disk(entry, domain, text.tokens[:p1])
        self.report.tell()
        return p1 if entry else 0

    def _to_disk(self, entry: Entry, domain: str, tokens: np.ndarray) -> None:
        if self._shelf is not None and m.ALONE not in domain:
            self._shelf.put(entry, domain, tokens.copy())

    def _take_from_disk(self) -> None:
        """Take over entries read, written, found or lost on disk since the last time."""
        if self._shelf is None:
            return
        for kept in self._shelf.take_found():
            if isinstance(self.store, PrefixTree):
                entry = self.store.add(kept.domain, kept.tokens, kept.p0, NOTHING, kept.cost_ms)
            else:
                entry = self.store.find(kept.domain, kept.tokens, kept.cost_ms)
            if entry is not None:
                entry.path, entry.n_bytes = kept.path, kept.n_bytes
        for entry, data in self._shelf.take_read():
            if data is not None:
                self.store.fill(entry, data)
            else:
                self.store.lose(entry)
        self.report.tell()

    def idle_ms(self) -> int | None:
        """How long an idle engine may sleep before `look_at_memory`, or before it saves held texts;
        None = for ever."""
        if self.late.is_left:
            return LATE_MS
        return IDLE_LOOK_MS if self.store.bytes_held else None

    def look_at_memory(self) -> None:
        """Take no more than is free, and give back where others need it."""
        now_s = time.monotonic()
        if not self.is_on or now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        free = available_bytes()
        if free:
            room = self.store.bytes_held + free - total_bytes() // RESERVE
            self.store.most_bytes = max(min(self._asked, room), 0)
            self.store.shrink(why=MEMORY)
            self.report.tell()

    def check(self) -> None:
        """Raises AssertionError where what is kept contradicts itself, or the rows."""
        self.store.check()
        table = self._table
        for slot in self._alone:
            # it waits, or was rated and is about to
            waits = table.serial[slot] and table.state[slot] in (t.FREE, t.WAITING)
            assert waits, f"row {slot} has a text of its own, and waits for nothing"
        for job in self._restoring:
            assert table.state[job.slot] == t.WAITING and table.seq[job.slot] >= 0
            assert table.n_past[job.slot] < job.parts[-1].end
        for slot, saved in self._saved.items():
            assert saved <= table.n_tokens[slot], f"row {slot} has fewer tokens than are kept"

    def clear(self) -> list[int]:
        """Forget all that is kept, and what is on its way; returns the rows that waited for it."""
        slots = [job.slot for job in self._restoring]
        for domain in self.store.domains():
            for entry in self.store.entries(domain):
                disk.remove(entry.path)
        self._restoring.clear()
        self._awaited.clear()
        self._saved.clear()
        self.late.clear()
        for slot in list(self._alone):
            self.unpark(slot)
        self.store.clear()
        self.report.tell()
        return slots


def kept_as(entry: Entry, domain: str) -> disk.Kept:
    """Contents that the file of an entry has to hold."""
    tokens = entry.tokens if entry.parent is None else PrefixTree.text_of(entry)
    return disk.Kept(entry.path, domain, tokens, entry.p0, entry.n_bytes, entry.cost_ms)


def _needed(part: Part) -> list[Entry]:
    """Entries whose data a part is restored from."""
    return [part.entry] if part.mark is None else [part.entry, part.mark]
