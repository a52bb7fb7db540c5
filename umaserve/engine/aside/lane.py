"""The lane of work beside the requests: texts in order of arrival, a piece between two ticks.

The loop calls `step` between ticks.  While nobody interactive has work, a piece is a chunk of a
text.  While streams decode, ``pace`` says how long a piece may be, as the latency guard does for
background prompts.  On a processor the chunk then stops in the middle of its graph, on a stack of
its own (`umaserve.engine.prefill.chunk_stack`).  Elsewhere it is of few tokens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native import abort
from umaserve.engine.native.calls import Native
from umaserve.engine.native.status import DECODED, GIVEN_UP, NO_LOGITS
from umaserve.engine.prefill.chunk_stack import ChunkStack, give_up, hand_over, run_parts, waits
from umaserve.engine.prefill.gate import DONE, THREAD, Gate, begin_chunk, hang
from umaserve.wire import table as t

from .chunks import PIECE_MS, ChunkSizes
from .context import AsideContext, chunk_of
from .jobs import Job
from .kept_context import KeptContext

STARVED_NS = 1_000_000_000  # what waited so long gets a piece even so
FAR_NS = 1 << 60
NOBODY = -1  # to be woken when a chunk has ended


class Allowed(NamedTuple):
    """How long a piece may be now, and at best; infinite where nobody interactive has work."""

    now_ms: float
    most_ms: float


class AsideLane:
    """For the loop's thread."""

    def __init__(self, setup: Setup, native: Native, pace: Callable[[], Allowed]) -> None:
        self._loaded, self._table, loaded = setup.loaded, setup.table, setup.loaded
        self._native, self._pace = native, pace
        self._jobs: deque[Job] = deque()
        self._at = 0  # tokens of the first one that are computed
        self._in_flight = 0  # tokens of the chunk that is being computed, or whose rows wait
        self._rows: np.ndarray | None = None  # of a chunk that is computed
        self._taken = 0  # of them
        self._kept = KeptContext(setup, self._hooks)
        self._last_ns = 0  # when a piece was last computed
        self._gate = Gate.zeros()
        self._sizes = ChunkSizes(chunk_of(loaded), loaded.model.size_bytes, self._gate.times)
        self._stack: ChunkStack | None = None
        if loaded.on_processor:
            with contextlib.suppress(OSError):  # not here: chunks of few tokens then
                self._stack = ChunkStack(self._gate, loaded.library)

    def compile(self) -> None:
        """Compile the code that pieces need, or take it from the cache, before a request waits."""
        if self._stack is not None and not waits(self._gate):
            run_parts(self._gate, self._native, 0, NOBODY)
            give_up(self._gate)
            self._gate.stop = 0
        begin_chunk(self._gate, 1)

    # --- what is wanted ---------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._jobs) and not self._kept.is_awaited

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    def put(self, job: Job) -> None:
        self._jobs.append(job)

    def drop(self, is_meant: Callable[[Any], bool]) -> Job | None:
        """Take the job out that is meant; None where there is none."""
        for job in self._jobs:
            if is_meant(job):
                if job is self._jobs[0]:
                    self._leave()
                else:
                    self._jobs.remove(job)
                return job
        return None

    def _leave(self) -> Job:
        """The first job has ended: nothing of it stays."""
        if waits(self._gate):
            give_up(self._gate)
        self._gate.owner, self._gate.stop = THREAD, 0
        self._at = self._in_flight = self._taken = 0
        self._rows = None
        return self._jobs.popleft()

    # --- its context ------------------------------------------------------------------------------

    def idle_ms(self) -> int | None:
        """How long the loop may sleep before `free_unused` has something to do; None = for ever."""
        return None if self._jobs else self._kept.idle_ms()

    def free_unused(self) -> None:
        """Give the context back if nobody needed it for a while."""
        if not self._jobs:
            self._kept.free_unused()

    def close(self) -> None:
        """Free the context.  Jobs that are left stay where they are."""
        if waits(self._gate):
            give_up(self._gate)
        self._kept.close()

    def _hooks(self) -> dict[str, Any]:
        loaded = self._loaded
        return hang(self._gate, loaded.library, loaded.n_vocab) if self._stack else {}

    # --- pieces -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Compute the next piece, if those who are interactive leave time for it."""
        if not self.is_wanted:
            return
        job = self._jobs[0]
        if not job.tokens:
            self._leave().end()
            return
        context = self._kept.ready(len(job.tokens))
        if isinstance(context, str):
            self._leave().fail("E_RUNTIME_001", context)
            return
        if context is None:
            return
        allowed, began = self._pace(), time.monotonic_ns()
        is_starved = began - self._last_ns > STARVED_NS
        if allowed.now_ms <= 0.0 and not is_starved:
            return
        self._mark(job, began)
        try:
            self._go_on(job, context, allowed, began)
        finally:
            self._mark(job, 0)
        ended = self._last_ns = time.monotonic_ns()
        header = self._table.header
        header.longest_tick_ns = max(header.longest_tick_ns, ended - began)
        if header.work_since_ns:
            header.work_since_ns += ended - began  # no overhead

    def _mark(self, job: Job, began_ns: int) -> None:
        """Say that a piece is being computed, whose it is, and since when; 0 = no more."""
        header = self._table.header
        header.busy = t.BUSY_DECODE if began_ns else t.BUSY_IDLE
        header.tick_start_ns = began_ns
        if began_ns:
            header.heartbeat_ns = began_ns
        if job.slot >= 0:
            self._table.in_tick[job.slot] = 1 if began_ns else 0

    def _go_on(self, job: Job, context: AsideContext, allowed: Allowed, began_ns: int) -> None:
        alone = allowed.now_ms == math.inf
        until = FAR_NS if alone else began_ns + int(allowed.now_ms * 1e6)
        if self._rows is None:
            if len(job.tokens) > self._at and not self._compute(job, context, allowed, until):
                return
            if not alone and self._rows is not None and time.monotonic_ns() >= until:
                return  # they are there, and wait for the next piece
        self._take(job, context, began_ns + int(PIECE_MS * 1e6) if alone else until)

    def _compute(self, job: Job, context: AsideContext, allowed: Allowed, until: int) -> bool:
        """A chunk, or parts of it; whether its rows are there."""
        gate, began = self._gate, time.monotonic()
        alone = allowed.now_ms == math.inf
        threads = self._loaded.n_threads_batch
        if not self._in_flight:
            if self._at == 0:
                context.context.clear()
            stops = not alone and self._stack is not None
            n, size_class = self._next_chunk(job, allowed, stops)
            if n == 0:
                return False
            self._in_flight, at = n, self._at
            context.fill(job.tokens[at : at + n], at, job.wants(at, n), job.embeds)
            context.context.set_threads(self._loaded.n_threads, threads)
            begin_chunk(gate, n, whole=not stops)
            if stops:
                gate.size_class = size_class
                hand_over(gate, context.context.address, context.batch.address)
        one = self._in_flight == 1
        place_threads(self._loaded.places, self._loaded.n_threads if one else threads)
        if waits(gate):
            run_parts(gate, self._native, until, NOBODY)
            if gate.owner != DONE:
                return False
            status, gate.owner = int(gate.status), THREAD
        else:
            with abort.armed(self._table.abort):
                status = context.decode()
            if status == DECODED:
                self._sizes.learn(self._in_flight, 1000.0 * (time.monotonic() - began))
        return self._computed(context, status)

    def _next_chunk(self, job: Job, allowed: Allowed, stops: bool) -> tuple[int, int]:
        """Tokens of the next chunk, 0 = none fits; and where the gate keeps its times."""
        left = len(job.tokens) - self._at
        if stops:
            return self._sizes.stoppable(left, allowed.most_ms, lambda n: job.wants(self._at, n))
        if allowed.now_ms == math.inf:
            return self._sizes.whole(left), 0
        is_starved = time.monotonic_ns() - self._last_ns > STARVED_NS
        return self._sizes.within(left, allowed.now_ms, int(is_starved)), 0

    def _computed(self, context: AsideContext, status: int) -> bool:
        if status == DECODED:
            self._rows, self._sizes.given_up = context.rows(), 0
            if self._rows is not None:
                return True
            status = NO_LOGITS
        n, self._in_flight = self._in_flight, 0
        if status == GIVEN_UP:  # for somebody interactive
            self._sizes.given_up += 1
            if not context.context.cut(0, self._at):
                self._at = 0  # this kind of memory cannot go back
                self._jobs[0].restart()
            return False
        why = self._loaded.library_log_tail() or "libllama gave no reason"
        text = f"llama_decode failed with status {status} on {n} tokens: {why}"
        self._leave().fail("E_RUNTIME_001", text)
        return False

    def _take(self, job: Job, context: AsideContext, until_ns: int) -> None:
        """Give the job its rows, one at least."""
        rows, why = self._rows, ""
        if rows is not None:
            while self._taken < len(rows) and not why:
                why = job.take(self._at + self._taken, rows[self._taken])
                self._taken += 1
                if time.monotonic_ns() >= until_ns:
                    break
            if why:
                context.context.clear(data=True)  # no number of it reaches another text
                self._leave().fail("E_RUNTIME_001", why)
                return
            if self._taken < len(rows):
                return
            self._at += self._in_flight
            self._rows, self._taken, self._in_flight = None, 0, 0
            if self._at < len(job.tokens):
                job.flush()
        if self._at >= len(job.tokens) and not job.keep(context.context):
            self._leave().end()

