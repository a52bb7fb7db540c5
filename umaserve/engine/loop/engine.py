"""The engine's loop: what happens between runs of steady ticks.

One thread, one ``llama_context``.  The ticks themselves are compiled (``ticks``); here is what
needs Python: messages, admission, sequences, rows that ended, decodes that failed.  Text never gets
here; ids go into the table and the front is woken once a tick.

Long: what has to happen between two runs of ticks stands together; sequences, landings and trials
have modules of their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from umaserve.drafts.ring import FEWEST_SHARED, remember
from umaserve.drafts.wanted import MOST, MOST_EACH
from umaserve.engine.aside.lane import Allowed, AsideLane
from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.constraints.constraints import CODE
from umaserve.engine.drafting.opening import allocate_drafts, open_speaker, tell_of_failure
from umaserve.engine.drafting.records import domain_number
from umaserve.engine.model.abilities import keeps_state
from umaserve.engine.model.cost_file import CostFile, identity
from umaserve.engine.model.cost_keeper import CostKeeper
from umaserve.engine.model.thread_places import leave_places, place_threads
from umaserve.engine.model.ways import Ways
from umaserve.engine.native import abort, disk_reads
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import Native
from umaserve.engine.native.status import GIVEN_UP, NO_KV_SLOT, NO_LOGITS
from umaserve.engine.prefill import worker as prefill_worker
from umaserve.engine.prefill.orders import Orders
from umaserve.engine.prefill.ready_graph import WIDTH, ReadyGraph
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.prefixes import integrity
from umaserve.engine.samplers.first_token import FirstTokens
from umaserve.engine.samplers.rows import RowPool, start_pool, worker_count
from umaserve.engine.samplers.team_rows import make_team
from umaserve.jit.direct import Direct
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import (
    ALL_FEATURES,
    FEATURES,
    Knobs,
    Memory,
    Plan,
    SchedulerState,
    Tick,
    forget,
)
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CostModel, doubt_larger, learn_part
from umaserve.policy.without_streams import note_given_up
from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Rows, Scratch
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

from . import records, ticks
from .admission import Admission
from .aside_pace import allowed_now
from .aside_texts import AsideTexts
from .custom_policy import can_be_computed, find_policy
from .idle_work import IdleWork
from .inbox import handle_some
from .landing import Landing
from .meanwhile import meanwhile
from .pictures import Pictures
from .seats import Seats
from .trials import Trials
from .turns import AdapterTurns

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

MANY_TICKS = 1 << 40
LOOK_AFTER = 64  # ticks, where beginnings of texts are saved
PAUSE_MS = 5  # without work after which the graph of a short prompt is made ready
LOOK_OUT_S = 0.0005  # a request is on its way: waking up takes longer than this costs


class Engine:
    """Runs requests on one loaded model until the front goes away or says so."""

    def __init__(
        self, start: m.Start, loaded: Loaded, table: t.SessionTable, control: Control
    ) -> None:
        self.start = start
        self.loaded = loaded
        self.table = table
        self.control = control
        self.samplers = SamplerTable(start.n_slots, MOST_EACH)
        self.admission = Admission(start, loaded, table, control, self.samplers)
        self.cost = CostModel.unknown()
        self.cost_keeper = CostKeeper(loaded.places)
        self.plan = Plan.empty(start.n_slots)
        self.work = records.Work.allocate(loaded, self.admission.resumed_at)
        self.state = SchedulerState.of(
            table, np.zeros(start.n_slots, np.int64), np.zeros(start.n_slots, np.int32)
        )
        self.custom = find_policy(start.policy)
        self.ways = Ways()
        self.aside_threads = 0
        self.sequences = Sequences(loaded)
        self.worker: PrefillWorker | None = None
        self.trials = Trials(self)
        self.turns = AdapterTurns(self)
        self.seats = Seats(self)
        self.admission.on_row = self._arrive
        self.landing = Landing(self)
        self.later: list[m.ToEngine] = []  # messages that wait for the next tick
        self.ticks_done = 0
        self._warned = False
        self._checks = integrity.is_wanted()
        table.header.cells_total = loaded.n_ctx
        abort.watch(loaded.context, table.abort)
        self._batch = Batch(loaded.library.ffi, loaded.n_batch, start.n_slots + MOST)
        self.graph = ReadyGraph(loaded, self._batch)
        self.columns = records.Columns.of(table)
        self.native = Native.of(
            loaded.library, loaded.context.pointer, self._batch.struct, control.wake_fd,
            control.poll_fds,
        )  # fmt: skip
        self._scratch = Scratch.allocate(loaded.n_vocab, table.spec.n_ctx, loaded.eog_ids.size)
        self.team_scratches: list[Scratch] = []
        self._pool = self._start_pool()
        self.traffic = Traffic.of(
            loaded.model, type_k=start.type_k, type_v=start.type_v, n_ubatch=loaded.n_ubatch,
            experts_used=start.experts_used,
        )  # fmt: skip
        self.budget = Budget.of(start.bmt_budget)
        self.memory = Memory.fresh(start.n_slots)
        self.drafts = allocate_drafts(start, loaded, table)
        self.speaker = open_speaker(start, loaded, table, self.native, control)
        self.aside = AsideLane(
            loaded, start, table, self.native, control.notify, self._allowed_aside
        )
        self.aside_texts = AsideTexts(
            loaded, table, control, self.admission, self.aside, self.seats.prefixes
        )
        self.pictures = Pictures(self)
        self.admission.on_pictures = self.pictures.arrive
        self.idle_work = IdleWork(self)
        self.arrange()

    def equip(self, ways: Ways) -> None:
        """Have what suits a device that behaves like this; once, before the first request."""
        start, loaded = self.start, self.loaded
        self.ways = ways
        leave_places(loaded.places)  # the worker's thread is to run anywhere
        self.aside_threads = self._aside_threads()
        if self.aside_threads:
            self.worker = PrefillWorker(
                loaded, start, self.table, self.aside_threads, self.control.notify,
                self._chunk_took, self.first_tokens(),
            )  # fmt: skip
        place_threads(loaded.places, max(loaded.n_threads, loaded.n_threads_batch))
        self.arrange()

    def _start_pool(self) -> RowPool:
        """Start the samplers: threads of their own, libllama's team, or the loop's thread alone."""
        loaded, columns, batch = self.loaded, self.columns, self._batch.arrays
        self._rows = Rows(
            batch.out_slot, self.work.addresses, loaded.n_vocab, self.samplers.settings,
            columns.tokens, columns.n_tokens, columns.n_prompt, loaded.eog_ids,
            self.work.sampled, columns.logprob, columns.top_ids, columns.top_logprobs,
        )  # fmt: skip
        n_workers = self.start.sampling_threads
        if n_workers < 0:
            n_workers = worker_count(loaded.on_processor, loaded.n_cores)
        pool = start_pool(n_workers, self.table.spec.n_ctx, self._rows)
        if pool.n_workers:
            return pool
        team, self.team_scratches = make_team(
            loaded.places, max(loaded.n_threads, loaded.n_threads_batch), self._rows,
            self._scratch, pool.team_counted,
        )  # fmt: skip
        return pool._replace(team=team)

    def _arrive(self, slot: int, message: m.Submit) -> None:
        """A request has got a row, and shares what it says with its domain."""
        domain = self.turns.arrive(slot, message)
        self.seats.prefixes.arrive(slot, domain, message.session)
        self.drafts.domain[slot] = domain_number(domain)

    @property
    def can_draft(self) -> bool:
        """Whether ticks may have drafted tokens."""
        return bool(self.drafts.marks.way)

    def remember_text(self, slot: int) -> None:
        """A row has ended: others of its domain may say the same.

        What was known of its prompt is there already.
        """
        drafts, table = self.drafts, self.table
        if drafts.marks.way and drafts.domain[slot] and table.n_tokens[slot] >= FEWEST_SHARED:
            domain, first = int(drafts.domain[slot]), int(table.cached[slot])
            remember(drafts.ring, domain, table.tokens[slot], first, int(table.n_tokens[slot]))

    def arrange(self) -> None:
        """Put together what the compiled ticks take; again after threads or worker changed."""
        start, loaded = self.start, self.loaded
        aside = self.worker is not None and self.worker.alive
        self.knobs = Knobs(
            n_batch=loaded.n_batch,
            max_merge=start.max_merge,
            tick_budget_ms=float(start.tick_budget_ms),
            latency_cap=float(start.latency_cap),
            reading_ms=float(start.reading_ms),
            abortable=self.ways.abortable,
            can_aside=aside,
            features=ALL_FEATURES - sum(FEATURES[name] for name in start.without),
            wide_reads=not loaded.on_processor,
            overlaps=self.ways.overlaps,
            sliced=self.worker is not None and aside and self.worker.sliced,
        )
        left = loaded.threads(self.aside_threads)[1]
        self.records = records.Loop(
            fixed=records.Fixed(
                loaded.n_vocab, loaded.n_ctx, loaded.n_threads, loaded.n_threads_batch, left,
                loaded.n_seq,
            ),
            native=self.native,
            places=loaded.places,
            pool=self._pool,
            columns=self.columns,
            state=self.state,
            plan=self.plan,
            batch=self._batch.arrays,
            knobs=self.knobs,
            cost=self.cost,
            memory=self.memory,
            traffic=self.traffic,
            budget=self.budget,
            orders=self.worker.orders if self.worker is not None else Orders.allocate(1, -1),
            ahead=self.samplers.ahead,
            rows=self._rows,
            scratch=self._scratch,
            work=self.work,
            drafts=self.drafts,
            speaker=self.speaker,
        )  # fmt: skip
        self._loop = records.refer(self.records)
        self._run_ticks = Direct(ticks.run_ticks)

    def _aside_threads(self) -> int:
        """Threads for prompts beside the ticks; 0 = none are computed there."""
        asked = self.start.prefill_threads
        if asked == 0 or not prefill_worker.available(self.loaded)[0]:
            return 0
        if not self.ways.abortable:
            return 0  # an accelerator computes prompts in the ticks
        return min(asked, self.loaded.n_cores - 1) if asked > 0 else self.loaded.n_cores // 2

    def first_tokens(self) -> FirstTokens:
        """Return the sampler of first tokens of prompts beside the ticks."""
        return FirstTokens(self.loaded, self.table, self.samplers.settings)

    def _chunk_took(self, tokens: int, longest_ms: float, all_ms: float) -> None:
        """From the worker's thread: what the parts of a chunk between the ticks took."""
        learn_part(self.cost, tokens, longest_ms, all_ms)
        doubt_larger(self.cost, tokens)

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the front closes the control socket or sends Shutdown."""
        header = self.table.header
        self.sequences.clear()
        self.seats.prefixes.report.tell()
        loaded_bytes = self._bytes_read()
        while True:
            busy = self._has_work() or self.aside.is_wanted
            header.heartbeat_ns = time.monotonic_ns()
            header.reread_bytes = max(self._bytes_read() - loaded_bytes, header.reread_bytes)
            if not busy:
                self._save_costs()
            messages, self.later = self.later, []
            messages += self.control.receive(0) if busy or messages else self._pause()
            if not busy and not messages and not self.admission.has_tokenised:
                messages = self._expect()
            if not busy:
                header.work_since_ns = time.monotonic_ns()
                self.cost_keeper.doubt_after_pause(self.cost)
            if self.control.closed or any(isinstance(each, m.Shutdown) for each in messages):
                return
            self.later = handle_some(self, messages)
            self.admission.take_tokenised()
            if self.worker is not None:
                self.landing.take(self.worker)
                if self.knobs.can_aside and not self.worker.alive:
                    self.state.aside[:] = 0
                    self.arrange()
            self.aside.step()
            self._copy_prefixes()
            self.seats.admit()
            self.turns.step()
            looked = self.pictures.step()
            ready = self.graph.is_ready
            self.work.flight.width = WIDTH if ready else 0
            prefixes = self.seats.prefixes
            one = ready or self.trials.wanted or self.aside.has_jobs or prefixes.is_busy
            one = one or self.pictures.is_left
            many = LOOK_AFTER if prefixes.is_on else MANY_TICKS
            ran = self.tick(1 if one else self.turns.ticks(many)) or looked
            if ready and ran:
                self.graph.forget()
            waits = not self.seats.full.holds and (self.table.state == t.WAITING).any()
            if not ran and self.seats.apart.is_opening:
                self.later += self.control.receive(1)
            elif not ran and not prefixes.is_busy and waits:
                # nothing runs, yet nothing could be admitted: cannot happen while the cells of a
                # single request fit the context, which admission makes sure of
                raise RuntimeError("a waiting request cannot be admitted although nothing runs")

    def _pause(self) -> list[m.ToEngine]:
        """Sleep until somebody wants something; what he may need is made ready meanwhile."""
        self.turns.step()
        if self.seats.full.holds:  # the front's answer is on its way, and the cache is not empty
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
        if self.graph.wanted and has_room and not self.aside.has_jobs:
            # a `receive` would take the sign that a text is tokenised, and nothing would say so
            if self.control.has_something(PAUSE_MS):
                return self.control.receive(0)
            self.graph.prepare(self.control.has_something, self.sequences.spare())
            if not self.sequences.next_turns:
                self.sequences.clear()
        parts = self.aside, self.seats.apart, self.seats.prefixes
        waits = [part.idle_ms() for part in parts]
        messages = self.control.receive(min((ms for ms in waits if ms is not None), default=None))
        self.aside.free_unused()
        self.seats.apart.free_unused()
        self.seats.prefixes.look_at_memory()
        if not messages:
            self.seats.prefixes.save_late(self.control.has_something)
        return messages

    def check(self) -> int:
        """`integrity.check` of what there is, between two ticks."""
        return integrity.check(self.loaded, self.table, self.sequences, self.seats.prefixes)

    def _allowed_aside(self) -> Allowed:
        """How long a piece of work beside the requests may be now."""
        awaited = self.admission.awaited
        return allowed_now(self.table, self.memory, self.knobs, awaited, self.ticks_done)

    def _copy_prefixes(self) -> None:
        """Save and restore beginnings of texts, where streams leave the time for it."""
        prefixes = self.seats.prefixes
        if prefixes.is_on and prefixes.is_busy:
            self.seats.copy_prefixes(self._allowed_aside().now_ms > 0.0)

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
        why = self.cost_keeper.save_now_and_then(self.cost, self.table.header.ticks)
        if why:
            self.control.send(m.Log("debug", f"what ticks cost was not saved: {why}"))

    def _bytes_read(self) -> int:
        """From disk until now, but for texts that are kept there."""
        return disk_reads.by_process() - self.seats.shelf_bytes_read

    def _has_work(self) -> bool:
        states = self.table.state.tolist()
        return t.RUNNING in states or t.WAITING in states

    def handle(self, message: m.ToEngine) -> None:
        if isinstance(message, m.Submit | m.SetLane | m.Cancel) and message.is_urgent:
            self.table.abort.urgent_seen += 1
        if isinstance(message, m.Submit):
            self.admission.submit(message)
        elif isinstance(message, m.Cancel):
            self._cancel(message.serial)
        elif isinstance(message, m.SetLane):
            slot = self.admission.slot_of(message.serial)
            if slot >= 0:
                self.table.lane[slot] = message.lane
                self.table.auto[slot] = t.LABELLED
        elif isinstance(message, m.Shift):
            self.seats.full.shift(message)
        elif isinstance(message, m.Release):
            self.seats.full.let_go(message.slot)
            self.admission.release(message.slot, message.serial)
        elif isinstance(message, m.Tokenize | m.Embed):
            self.admission.tokenize(message)
        elif isinstance(message, m.Forget):
            self.admission.forget(message.ref)
            self.aside_texts.forget(message.ref)
        elif isinstance(message, m.AskCache):
            self.control.send(self.seats.prefixes.report.message(message.ref))
        self.table.header.handled += 1

    def _cancel(self, serial: int) -> None:
        if self.admission.cancel_pending(serial) or self.aside_texts.cancel(serial):
            return
        slot = self.admission.slot_of(serial)
        if slot >= 0 and self.table.state[slot] in (t.WAITING, t.RUNNING):
            self.seats.end(slot, t.REASON_CANCEL)
            self.control.wake()

    # --- ticks -------------------------------------------------------------------------------

    def tick(self, most: int = 1) -> bool:
        """Run up to ``most`` ticks, fewer when Python is needed; False when nothing can run."""
        given = -1
        if self.custom is not None:
            most, given = 1, self._custom_plan()
        self.work.flight.awaited = self.admission.awaited
        self.work.flight.must_stop = 0
        why, self.ticks_done = self._run_ticks(most, self.ticks_done, given, self._loop)
        while why == records.UNDER_WAY:
            self.work.flight.must_stop = not meanwhile(self)
            self.work.flight.awaited = self.admission.awaited
            why, self.ticks_done = self._run_ticks(
                most, self.ticks_done, records.RESUME, self._loop
            )
        out = self.work.out
        if why in (records.ENDED, records.NOT_NUMBERS):
            tell_of_failure(self.speaker, self.start, self.loaded, self.control)
            for slot in self.work.ended[: int(out.ended)].tolist():
                self.seats.ended(slot)
            # none where it is ENDED
            without = int(out.without_numbers)
            self.trials.accuse(self._batch.arrays.out_slot[:without].tolist())
            for slot in self.work.stuck[: int(out.without_choice)].tolist():
                self._settle_stuck(slot)
        elif why == records.NO_ROOM:
            # a session alone fits: admission saw to it.  Cells of a full row are free soon
            if not self.seats.evict() and self.seats.full.holds:
                self.later += self.control.receive(1)
        elif why == records.FAILED:
            entries = int(out.entries)
            self.decode_failed(int(out.status), self.plan.slots[:entries].copy())
        elif why == records.ABORTED:
            self._aborted(self.plan.slots[: int(out.entries)].tolist())
        return why != records.NOTHING

    def _settle_stuck(self, slot: int) -> None:
        """A row got no token from its constraint: it is computed again, or ends."""
        reason, why = self.admission.constraints.verdict(slot)
        if reason == t.REASON_NONE:
            self._forget_last(slot)
            return
        if reason == t.REASON_ERROR:
            serial = int(self.table.serial[slot])
            self.control.send(m.Failed([serial], CODE, why))
        self.seats.end(slot, reason)
        self.control.wake()

    def _forget_last(self, slot: int) -> None:
        """Let a row feed its last token again."""
        table = self.table
        last = int(table.n_past[slot]) - 1
        is_apart = table.isolate[slot] == t.APART
        # from the start where this kind of memory cannot go back
        table.n_past[slot] = (
            self.seats.apart.cut(last) if is_apart else self.pictures.keep(slot, last)
        )
        table.header.cells_used = cells.cells_used(table)

    def _custom_plan(self) -> int:
        """Entries of a plan by a policy in Python; one that cannot be computed is left to ours."""
        assert self.custom is not None
        entries, problem = -1, "made a plan that cannot be computed"
        try:
            entries = self.custom(*self._view(), self.plan)
        except Exception as error:  # whatever somebody else's policy raises
            problem = f"raised {error!r}"
        if can_be_computed(self.plan, entries, self.state, self.loaded.n_batch):
            return int(entries)
        if not self._warned:
            text = f"the policy {self.start.policy} {problem}"
            self.control.send(m.Log("warn", text + "; guarded plans instead, now and then"))
        self._warned = True
        return -1

    def _view(self) -> tuple[object, ...]:
        """Arguments that a policy in Python is given, before the plan."""
        used = cells.cells_used(self.table)
        free = self.loaded.n_ctx - used
        forget(self.plan.info)
        self.plan.aside[0] = -1
        tick = Tick(self.ticks_done, time.monotonic_ns(), free, used, float("inf"))
        return self.state, tick, self.knobs, self.cost, self.memory, self.traffic

    def _aborted(self, slots: list[int]) -> None:
        """A prompt chunk was given up: nothing of it counts."""
        table = self.table
        for slot in slots:
            table.in_tick[slot] = 0
            # from the start where this kind of memory cannot go back
            table.n_past[slot] = self.pictures.keep(slot, int(table.n_past[slot]))
        if len(slots) > 1 and keeps_state(self.loaded.library.lib, self.loaded.model.pointer):
            self.seats.lose_states(slots)
        table.header.aborted_chunks += 1
        note_given_up(self.memory, time.monotonic_ns())

    # --- what is kept from start to start ----------------------------------------------------

    def recall_costs(self) -> None:
        """Know what ticks cost from the last start on this machine, if there was one."""
        self.cost_keeper.recall(CostFile(identity(self.start, self.loaded)), self.cost)
        self.arrange()

    def close(self) -> None:
        """End the worker's thread and keep what was learned; the model is the caller's to close."""
        self.cost_keeper.close(self.cost)
        self.aside.close()
        self.seats.close()
        if self.worker is not None:
            self.worker.close()

    def decode_failed(self, status: int, slots: np.ndarray) -> None:
        """``llama_decode`` said no: make room and try again, or end this batch's requests."""
        self.table.in_tick[slots] = 0
        if status == NO_KV_SLOT and self.seats.evict():
            return
        text = {
            NO_KV_SLOT: "no KV cells were left for it",
            GIVEN_UP: "the backend aborted it",
        }.get(status, self.loaded.library_log_tail() or "see the daemon's log")
        text = f"llama_decode failed with status {status}: {text}"
        if status == NO_LOGITS:
            text = "libllama has no logits of a batch that it decoded"
        serials = self.table.serial[slots].tolist()
        self.control.send(m.Failed(serials, "E_RUNTIME_001", text))
        for slot in slots.tolist():
            self.seats.end(slot, t.REASON_ERROR)
        self.control.wake()
