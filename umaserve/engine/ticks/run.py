"""The records of the compiled ticks, and the call that runs them."""

from __future__ import annotations

import numpy as np

from umaserve.drafts.wanted import MOST
from umaserve.engine.drafting.opening import allocate_drafts, open_speaker
from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.ways import Ways
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.samplers.rows import RowPool, start_pool, worker_count
from umaserve.engine.samplers.team_rows import make_team
from umaserve.jit.direct import Direct
from umaserve.llama.traffic import Traffic
from umaserve.models.gguf.faults import check_gguf
from umaserve.policy.base import ALL_FEATURES, FEATURES, Knobs, Memory, Plan, SchedulerState
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CostModel
from umaserve.policy.urgency import gives_way
from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Rows, Scratch

from . import records, ticks


class Ticks:
    """For the loop's thread.  `arrange` comes before `run`, and after each change of threads."""

    knobs: Knobs
    loop: records.Loop

    def __init__(
        self, setup: Setup, samplers: SamplerTable, cost: CostModel, resumed_at: np.ndarray
    ) -> None:
        start, loaded, table = setup.start, setup.loaded, setup.table
        self._setup, self._samplers, self._cost = setup, samplers, cost
        self.done = 0  # ticks
        self.plan = Plan.empty(start.n_slots)
        self.work = records.Work.allocate(loaded, resumed_at)
        self.state = SchedulerState.of(
            table, np.zeros(start.n_slots, np.int64), np.zeros(start.n_slots, np.int32)
        )
        self.batch = Batch(loaded.library.ffi, loaded.n_batch, start.n_slots + MOST)
        self.columns = records.Columns.of(table)
        self.native = Native.of(
            loaded.library, loaded.context.pointer, self.batch.struct, setup.control.wake_fd,
            setup.control.poll_fds,
        )  # fmt: skip
        self._scratch = Scratch.allocate(loaded.n_vocab, table.spec.n_ctx, loaded.eog_ids.size)
        self.team_scratches: list[Scratch] = []
        self._pool = self._start_pool()
        self._traffic = Traffic.of(
            check_gguf(loaded.model.path), type_k=start.type_k, type_v=start.type_v,
            n_ubatch=loaded.n_ubatch, experts_used=start.experts_used,
        )  # fmt: skip
        self.budget = Budget.of(start.bmt_budget)
        self.memory = Memory.fresh(start.n_slots)
        self.drafts = allocate_drafts(setup)
        self.speaker = open_speaker(setup, self.native)

    def _start_pool(self) -> RowPool:
        """Start the samplers: threads of their own, libllama's team, or the loop's thread alone."""
        loaded, columns, batch = self._setup.loaded, self.columns, self.batch.arrays
        self._rows = Rows(
            batch.out_slot, self.work.addresses, loaded.n_vocab, self._samplers.settings,
            columns.tokens, columns.n_tokens, columns.n_prompt, loaded.eog_ids,
            self.work.sampled, columns.logprob, columns.top_ids, columns.top_logprobs,
        )  # fmt: skip
        n_workers = self._setup.start.sampling_threads
        if n_workers < 0:
            n_workers = worker_count(loaded.on_processor, loaded.n_cores)
        pool = start_pool(n_workers, self._setup.table.spec.n_ctx, self._rows)
        if pool.n_workers:
            return pool
        team, self.team_scratches = make_team(
            loaded.places, max(loaded.n_threads, loaded.n_threads_batch), self._rows,
            self._scratch, pool.team_counted,
        )  # fmt: skip
        return pool._replace(team=team)

    def arrange(self, ways: Ways, beside: PrefillWorker) -> None:
        """Put together what the compiled ticks take; again after threads or worker changed."""
        start, loaded = self._setup.start, self._setup.loaded
        self.knobs = Knobs(
            n_batch=loaded.n_batch, max_merge=start.max_merge, overlaps=ways.overlaps,
            tick_budget_ms=float(start.tick_budget_ms), reading_ms=float(start.reading_ms),
            latency_cap=float(start.latency_cap), wide_reads=not loaded.on_processor,
            features=ALL_FEATURES - sum(FEATURES[name] for name in start.without),
            abortable=ways.abortable, can_aside=beside.alive,
            sliced=beside.alive and beside.sliced,
        )  # fmt: skip
        fixed = records.Fixed(
            loaded.n_vocab, loaded.n_ctx, loaded.n_threads, loaded.n_threads_batch,
            loaded.threads(beside.threads)[1], loaded.n_seq,
        )  # fmt: skip
        self.loop = records.Loop(
            fixed=fixed, native=self.native, places=loaded.places, pool=self._pool,
            columns=self.columns, state=self.state, plan=self.plan, batch=self.batch.arrays,
            knobs=self.knobs, cost=self._cost, memory=self.memory, traffic=self._traffic,
            budget=self.budget, orders=beside.orders, rows=self._rows, scratch=self._scratch,
            work=self.work, drafts=self.drafts, speaker=self.speaker,
        )  # fmt: skip
        self._loop = records.refer(self.loop)
        self._run_ticks = Direct(ticks.run_ticks)

    def run(self, most: int, given: int) -> int:
        """Run up to ``most`` ticks; return why they ended.  ``given``: see `ticks.run_ticks`."""
        why, self.done = self._run_ticks(most, self.done, given, self._loop)
        return int(why)

    def gives_way(self, slot: int, now_ns: int) -> bool:
        """Whether nobody has labelled a row, and its program has used up its allowance."""
        return bool(gives_way(self.state, self.knobs, self.memory, slot, now_ns))
