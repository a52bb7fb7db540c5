"""The engine's loop: what happens between runs of steady ticks.

One thread, one ``llama_context``.  The ticks are compiled (`umaserve.engine.ticks`).  All work in
Python is done here: messages, admission, sequences, rows that ended, decodes that failed.  Text
never gets here: ids go into the table, and the front is woken once a tick.

Long: all parts are made here, and called in their order between two runs of ticks.
"""

from __future__ import annotations

import os
import time
from functools import partial

from umaserve.drafts.wanted import MOST
from umaserve.engine.admission.admission import Admission
from umaserve.engine.aside.lane import Allowed, AsideLane
from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.constraints.constraints import CODE
from umaserve.engine.drafting.opening import tell_of_failure
from umaserve.engine.drafting.records import domain_number
from umaserve.engine.model.abilities import can_fill_up, keeps_state
from umaserve.engine.model.costs.cost_file import CostFile, identity
from umaserve.engine.model.costs.cost_keeper import CostKeeper
from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.thread_places import leave_places, place_threads
from umaserve.engine.model.ways import Ways
from umaserve.engine.native import abort, disk_reads
from umaserve.engine.prefill.ready_graph import WIDTH, ReadyGraph
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.prefixes import integrity
from umaserve.engine.prefixes.prefixes import Prefixes
from umaserve.engine.samplers.first_token import FirstTokens
from umaserve.engine.seats.apart import Apart
from umaserve.engine.seats.full_rows import FullRows
from umaserve.engine.seats.pictures import Pictures
from umaserve.engine.seats.seating import Seating
from umaserve.engine.seats.seats import Seats
from umaserve.engine.seats.trials import Trials
from umaserve.engine.seats.turns import AdapterTurns
from umaserve.engine.start.measures import Measures
from umaserve.engine.start.thread_choice import ThreadLooks
from umaserve.engine.start.warmup import FirstRow, compile_the_rest
from umaserve.engine.ticks import records
from umaserve.engine.ticks.run import Ticks
from umaserve.policy.cost.model import TILED, CostModel
from umaserve.policy.without_streams import note_given_up
from umaserve.sampling.params import SamplerTable
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .aside_pace import allowed_now
from .aside_texts import AsideTexts
from .custom_policy import CustomPolicy
from .idle_work import IdleWork
from .inbox import Inbox
from .landing import Landing
from .neighbours import Neighbours

MANY_TICKS = 1 << 40
LOOK_AFTER = 64  # ticks, where beginnings of texts are saved
PAUSE_MS = 5  # without work after which the graph of a short prompt is made ready
LOOK_OUT_S = 0.0005  # a request is on its way: waking up takes longer than this costs


class Engine:
    """Runs requests on one loaded model until the front goes away or says so."""

    idle_work: IdleWork

    def __init__(self, setup: Setup) -> None:
        start, loaded, table, control = setup.start, setup.loaded, setup.table, setup.control
        self.setup, self.loaded, self.table, self.control = setup, loaded, table, control
        self.samplers = SamplerTable(start.n_slots)
        self.admission = Admission(setup, self.samplers)
        self.admission.on_row = self._arrive
        self.cost = CostModel.unknown()
        self.cost.filled[0] = TILED if can_fill_up(loaded, TILED) else 0
        self.cost_keeper = CostKeeper(loaded.places, self.cost)
        self.custom = CustomPolicy(setup)
        self.sequences = Sequences(loaded)
        self.prefixes = Prefixes(setup, self.sequences, self.cost)
        self.ticks = Ticks(setup, self.samplers, self.cost, self.admission.resumed_at)
        self.work, self._flight = self.ticks.work, self.ticks.work.flight
        self.ways = Ways()
        self._make_parts()
        self._checks = os.environ.get(integrity.CHECKS) == "1"
        table.header.cells_total = loaded.n_ctx
        abort.watch(loaded.context, table.abort)
        self.graph = ReadyGraph(loaded, self.ticks.batch)
        self.arrange()

    def _make_parts(self) -> None:
        """Make the parts in such an order that each is given earlier parts alone."""
        setup, flight, aside = self.setup, self._flight, self.ticks.state.aside
        self.beside = PrefillWorker(setup, self.cost)
        self.turns = AdapterTurns(setup, aside, flight, self.beside)
        self.seats = Seats(
            setup, self.sequences, self.prefixes, self.beside, aside, self.ticks.drafts
        )
        self.full = FullRows(setup, self.admission, self.seats, self.turns, flight)
        self.apart = Apart(setup, self.seats, self.turns, flight)
        self.pictures = Pictures(setup, aside, flight, self.cost, self.turns, self.seats)
        self.seating = Seating(
            setup, self.seats, self.turns, self.apart, self.pictures, self.ticks.gives_way
        )
        self.trials = Trials(
            setup, self.seats, self.seating, self.full, self.apart, self.beside
        )
        self.landing = Landing(
            setup, self.ticks.columns, self.work, aside, self.seats, self.trials
        )
        self.aside = AsideLane(setup, self.ticks.native, self._allowed_aside)
        texts = AsideTexts(setup, self.admission, self.aside, self.prefixes)
        self.neighbours = Neighbours(self.table)
        self.inbox = Inbox(
            setup, self.admission, texts, self.seats, self.full, self.neighbours
        )

    def warm_up(self, everything: bool) -> None:
        """Decode a first token, `equip`, and compile what is missing; see `FirstRow.prove`."""
        row = FirstRow(
            self.setup, self.cost, self.sequences, self.samplers, self.work, self.tick
        )
        self.equip(row.prove(everything))
        compile_the_rest()
        self.ticks.gives_way(0, 1)
        self.aside.compile()
        self.pictures.chunk(0, 16)
        self.landing.settle_first(row.first_token(self._first_tokens()))
        row.forget(self.ticks.state.served)
        self.ticks.done = 0

    def equip(self, ways: Ways) -> None:
        """Have what suits a device that behaves like this; once, before the first request."""
        loaded, self.ways = self.loaded, ways
        leave_places(loaded.places)  # the worker's thread is to run anywhere
        self.beside.open(ways.abortable, self._first_tokens)
        place_threads(loaded.places, max(loaded.n_threads, loaded.n_threads_batch))
        self.arrange()
        # on an accelerator drafts are rows too: their cost is known before a row gets some
        drafts = MOST if ways.overlaps and self.ticks.drafts.marks.way else 0
        measures = Measures(self.setup, self.cost, self.beside, max(loaded.n_seq, drafts))
        looks = ThreadLooks(self.setup, self._threads_changed)
        self.idle_work = IdleWork(
            self.setup, self.seats, self._flight, self.cost_keeper, looks, measures,
            [looks.look, partial(measures.bandwidth, self.ticks.budget), measures.meet,
             self.graph.measure, measures.costs, measures.slices],
        )  # fmt: skip

    def arrange(self) -> None:
        """Tell the compiled ticks of other threads, or of another worker."""
        self.ticks.arrange(self.ways, self.beside)

    def _threads_changed(self) -> None:
        self.arrange()
        self.cost.forget()
        self.recall_costs()

    def _first_tokens(self) -> FirstTokens:
        """Return a sampler of first tokens of prompts beside the ticks."""
        return FirstTokens(self.loaded, self.table, self.samplers.settings)

    def _arrive(self, slot: int, message: m.Submit) -> None:
        """A request has got a row, and shares what it says with its domain."""
        domain = self.turns.arrive(slot, message)
        self.prefixes.arrive(slot, domain, message.session)
        pictures = message.pictures if self.table.n_tokens[slot] else ()
        self.pictures.arrive(slot, pictures)
        # no picture is drafted
        self.ticks.drafts.domain[slot] = 0 if pictures else domain_number(domain)

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the front closes the control socket or sends Shutdown."""
        header = self.table.header
        self.sequences.clear()
        self.prefixes.report.tell()
        loaded_bytes = self._bytes_read()
        while True:
            states = self.table.state.tolist()
            busy = t.RUNNING in states or t.WAITING in states or self.aside.is_wanted
            header.heartbeat_ns = time.monotonic_ns()
            header.reread_bytes = max(self._bytes_read() - loaded_bytes, header.reread_bytes)
            if not busy:
                self._save_costs()
            messages, self.inbox.later = self.inbox.later, []
            messages += self.control.receive(0) if busy or messages else self._pause()
            if not busy and not messages and not self.admission.has_tokenised:
                messages = self._expect()
            if not busy:
                header.work_since_ns = time.monotonic_ns()
                self.cost_keeper.doubt_after_pause()
            if self.control.closed or any(isinstance(each, m.Shutdown) for each in messages):
                return
            self.inbox.handle_some(messages)
            self.admission.take_tokenised()
            if self.beside.threads:
                self.landing.take(self.beside)
            if self.ticks.knobs.can_aside and not self.beside.alive:
                self.ticks.state.aside[:] = 0
                self.arrange()
            self.aside.step()
            if self.prefixes.is_on and self.prefixes.is_busy:
                self.seating.copy_prefixes(self._allowed_aside().now_ms > 0.0)
            if not self.trials.go_on():
                self.seating.admit()
            self.turns.step()
            if rest_ms := self.neighbours.rest_ms:
                is_wanted = self.aside.is_wanted or self.prefixes.is_busy
                self.inbox.later += self.control.receive(0 if is_wanted else rest_ms)
                continue
            gives_way, began_ns = self.neighbours.gives_way, time.monotonic_ns()
            looked = self.pictures.step()
            ready = self.graph.is_ready
            self._flight.width = WIDTH if ready else 0
            one = ready or self.trials.wanted or self.aside.has_jobs or self.prefixes.is_busy
            one = one or self.pictures.is_left or gives_way
            many = LOOK_AFTER if self.prefixes.is_on else MANY_TICKS
            ran = self.tick(1 if one else self.turns.ticks(many)) or looked
            if gives_way:  # else it was no single tick
                self.neighbours.ran(began_ns)
            if ready and ran:
                self.graph.forget()
            waits = not self.full.holds and (self.table.state == t.WAITING).any()
            if not ran and self.apart.kept.is_opening:
                self.inbox.later += self.control.receive(1)
            elif not ran and not self.prefixes.is_busy and waits:
                # nothing runs, yet nothing could be admitted: cannot happen while the cells of a
                # single request fit the context, which admission makes sure of
                raise RuntimeError("a waiting request cannot be admitted although nothing runs")

    def _pause(self) -> list[m.ToEngine]:
        """Sleep until somebody wants something; what he may need is made ready meanwhile."""
        self.turns.step()
        if self.full.holds:  # the front's answer is on its way, and the cache is not empty
            return self.control.receive(None)
        if self._checks:
            used = self.check()
            assert used == self.table.header.cells_used == 0, "nobody runs, and cells are in use"
        while self.idle_work.is_left and not self.aside.has_jobs:
            if self.control.has_something():
                self.idle_work.give_way()
                return self.control.receive(0)
            self.idle_work.step()
            if not self.idle_work.is_left:
                self._save_costs()
        has_room = self.sequences.next_turns.cells + WIDTH <= self.loaded.n_ctx
        self.graph.last_prompt = self.seating.last_prompt
        if self.graph.wanted and has_room and not self.aside.has_jobs:
            # a `receive` would take the sign that a text is tokenised, and nothing would say so
            if self.control.has_something(PAUSE_MS):
                return self.control.receive(0)
            self.graph.prepare(self.control.has_something, self.sequences.spare())
            if not self.sequences.next_turns:
                self.sequences.clear()
        parts = self.aside, self.apart.kept, self.prefixes
        waits = [part.idle_ms() for part in parts]
        messages = self.control.receive(min((ms for ms in waits if ms is not None), default=None))
        self.aside.free_unused()
        self.apart.kept.free_unused()
        self.prefixes.look_at_memory()
        if not messages:
            self.prefixes.save_late(self.control.has_something)
        return messages

    def check(self) -> int:
        """`integrity.check` of what there is, between two ticks."""
        return integrity.check(self.loaded, self.table, self.sequences, self.prefixes)

    def _allowed_aside(self) -> Allowed:
        """How long a piece of work beside the requests may be now."""
        ticks, awaited = self.ticks, self.admission.awaited
        return allowed_now(self.table, ticks.memory, ticks.knobs, awaited, ticks.done)

    def _expect(self) -> list[m.ToEngine]:
        """Wait for a request that may be on its way, without sleeping.

        What it will go through is done once for nothing meanwhile: after a pause neither code nor
        tables are in the processor's caches.
        """
        rehearsals = (self.admission.rehearse, self.tick)
        for rehearse in rehearsals:
            messages = self.control.receive(0)
            if messages or self.control.closed:
                return messages
            rehearse()
        return self.control.look_out(LOOK_OUT_S)

    def _save_costs(self) -> None:
        """Keep what was learned now and then; another thread writes it."""
        why = self.cost_keeper.save_now_and_then(self.table.header.ticks)
        if why:
            self.control.send(m.Log("debug", f"what ticks cost was not saved: {why}"))

    def _bytes_read(self) -> int:
        """From disk until now, but for texts that are kept there."""
        return disk_reads.by_process() - self.prefixes.files.shelf.bytes_read

    # --- ticks -------------------------------------------------------------------------------

    def tick(self, most: int = 1) -> bool:
        """Run up to ``most`` ticks, fewer when Python is needed; False when nothing can run."""
        given = -1
        if self.custom.is_on:
            most, given = 1, self.custom.plan(self.ticks.loop, self.ticks.done)
        self._flight.awaited = self.admission.awaited
        self._flight.must_stop = 0
        why = self.ticks.run(most, given)
        while why == records.UNDER_WAY:
            self._flight.must_stop = not self._meanwhile()
            self._flight.awaited = self.admission.awaited
            why = self.ticks.run(most, records.RESUME)
        out = self.work.out
        if why in (records.ENDED, records.NOT_NUMBERS):
            tell_of_failure(self.ticks.speaker, self.setup)
            for slot in self.work.ended[: int(out.ended)].tolist():
                self.full.ended(slot)
            # none where it is ENDED
            without = int(out.without_numbers)
            self.trials.accuse(self.ticks.batch.arrays.out_slot[:without].tolist())
            for slot in self.work.stuck[: int(out.without_choice)].tolist():
                self._settle_stuck(slot)
        elif why == records.NO_ROOM:
            # a session alone fits: admission saw to it.  Cells of a full row are free soon
            if not self.seats.evict() and self.full.holds:
                self.inbox.later += self.control.receive(1)
        elif why == records.FAILED:
            entries = int(out.entries)
            self.seats.decode_failed(int(out.status), self.ticks.plan.slots[:entries].tolist())
        elif why == records.ABORTED:
            self._aborted(self.ticks.plan.slots[: int(out.entries)].tolist())
        return why != records.NOTHING

    def _meanwhile(self) -> bool:
        """Do what can be done under a decode; False where there is more, for which ticks stop.

        A stop between two ticks makes each stream's next token late.
        """
        self.inbox.handle_under_way()
        self.admission.take_tokenised()
        done = not (self.inbox.is_left or self.aside.has_jobs or self.trials.wanted)
        if not self.trials.wanted:
            done = self.seating.admit(under_way=True) and done
        return done and not self.turns.is_on

    def _settle_stuck(self, slot: int) -> None:
        """A row got no token from its constraint: it is computed again, or ends."""
        reason, why = self.admission.constraints.verdict(slot)
        if reason == t.REASON_NONE:
            self._cut(slot, int(self.table.n_past[slot]) - 1)  # it feeds its last token again
            self.table.header.cells_used = cells.cells_used(self.table)
        elif reason == t.REASON_ERROR:
            self.seats.fail([slot], CODE, why)
        else:
            self.seats.end(slot, reason)

    def _cut(self, slot: int, n_kept: int) -> None:
        """Leave a row its first tokens, or none where this kind of memory cannot go back."""
        is_apart = self.table.isolate[slot] == t.APART
        self.table.n_past[slot] = (
            self.apart.cut(n_kept) if is_apart else self.pictures.keep(slot, n_kept)
        )

    def _aborted(self, slots: list[int]) -> None:
        """A prompt chunk was given up: nothing of it counts."""
        table = self.table
        for slot in slots:
            table.in_tick[slot] = 0
            self._cut(slot, int(table.n_past[slot]))
        if len(slots) > 1 and keeps_state(self.loaded.library.lib, self.loaded.model.pointer):
            self.seats.lose_states(slots)
        table.header.aborted_chunks += 1
        note_given_up(self.ticks.memory, time.monotonic_ns())

    # --- what is kept from start to start ----------------------------------------------------

    def recall_costs(self) -> None:
        """Know what ticks cost from the last start on this machine, if there was one."""
        self.cost_keeper.recall(CostFile(identity(self.setup.start, self.loaded)))
        self.arrange()

    def close(self) -> None:
        """End the worker's thread and keep what was learned; the model is the caller's to close."""
        self.cost_keeper.close()
        self.aside.close()
        self.apart.kept.close()
        self.prefixes.close()
        self.beside.close()
