"""Counters and times of the front; ``scorecard`` makes the public numbers from them."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from umaserve.metrics.slices import CapSlices
from umaserve.metrics.window import ROW_BOUNDS, Histogram, Window
from umaserve.server.requests.meters.apps import Apps
from umaserve.server.requests.meters.recent_errors import Client, RecentErrors
from umaserve.server.requests.meters.recent_requests import RecentRequests
from umaserve.wire.header import TICK_RING, TickRow
from umaserve.wire.memory_order import loads_first

if TYPE_CHECKING:
    from umaserve.server.engines.handle import EngineHandle
    from umaserve.server.requests.request import Request

TICK_READ_S = 0.25
TICK_READ_MOST = TICK_RING // 2  # unread ticks that are not left to wait for that
EARLY_NS = 3_000_000_000  # of an answer, from its first token on: its reader has just begun
FIFTH = 5  # token, with which an answer is seen to go on

OnTick = Callable[[int, int, TickRow], None]  # engine's pid, number of the tick


class Counters(NamedTuple):
    """Words of a table's `Header` that go on over engines."""

    ticks: int = 0
    decode_ns_total: int = 0
    tick_ns_total: int = 0
    sample_ns_total: int = 0
    rows_sampled: int = 0
    rows_in_place: int = 0
    copied_bytes: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0
    ticks_over_budget: int = 0
    decode_rows_total: int = 0
    cached_tokens: int = 0
    overlapped: int = 0
    work_ns_total: int = 0
    skipped_prefill: int = 0
    slow_tokens: int = 0
    bmt_bytes_total: int = 0
    bmt_trimmed: int = 0
    kv_evictions: int = 0
    aborted_chunks: int = 0
    aside_tokens: int = 0
    cache_asked: int = 0
    cache_hits: int = 0
    cache_evicted_room: int = 0
    cache_evicted_memory: int = 0
    reread_bytes: int = 0
    draft_tokens: int = 0
    draft_accepted: int = 0
    draft_gained_ns: int = 0

    def plus(self, more: Counters) -> Counters:
        return Counters(*map(operator.add, self, more))

    def since(self, past: Counters) -> Counters:
        """Return the counts added since ``past``."""
        return Counters(*map(operator.sub, self, past))


_of_header = operator.attrgetter(*Counters._fields)


class Recent:
    """Windows of the last minute, all of one model."""

    def __init__(self) -> None:
        self.ttft = (Window(), Window())  # by lane
        self.ttf5 = (Window(), Window())
        self.gaps = (Window(), Window())
        self.early_gaps = (Window(), Window())  # of these, what began early in an answer
        self.at_cap = CapSlices(time.monotonic())
        self.decode_ms = Window()
        self.overhead_us = Window()
        self.ewma_decode_ms: float | None = None
        self.over_baseline = Window()  # interactive times between tokens over their baselines
        self.baseline_ns = 0  # the newest that was known


class Meters:
    """Counters since the start, and in ``recent`` windows of the last minute.

    Times are those at which a token went out to its client. The clock is read when the frame is
    handed to the socket, so what happens between engine and client is in every number.
    """

    def __init__(self, latency_cap: float = 1.2) -> None:
        self.started_s = time.monotonic()
        self.requests_total = 0
        self.requests_of = Counter[int]()  # by the number of the model's `Service`
        self.errors_total: Counter[str] = Counter()
        self.recent_errors = RecentErrors()
        self.recent_requests = RecentRequests()
        self.tokens_total = 0
        self.prompt_tokens_total = 0
        self.slo_ttft_total = 0
        self.slo_tbt_total = 0
        self.restarts_total = 0
        self.recent = self._former = Recent()  # of the default model, and of the one before it
        self._others: dict[int, Recent] = {}  # of other models, by the number of their `Service`
        self._model = ""
        self.apps = Apps()
        self.ttft_histogram = Histogram()
        self.gap_histogram = Histogram()
        self.decode_histogram = Histogram()
        self.batch_histogram = Histogram(ROW_BOUNDS)
        self.on_tick: OnTick | None = None
        self._latency_cap = latency_cap
        # of engines that are gone, by the number of their model's `Service`
        self._past = defaultdict[int, Counters](Counters)
        self._ring_at: dict[int, int] = {}  # by pid
        self._ticks_read_s = 0.0

    def error(self, code: str, text: str, request: str = "", client: Client | None = None) -> None:
        """A client is told of an error, about the request of that id if there is one."""
        self.errors_total[code] += 1
        self.recent_errors.add(code, text, request, client)

    def serves(self, model: str) -> None:
        """``model`` is the default from now on ("": none); the windows of another are forgotten."""
        former, self._model = self._model, model
        if former in ("", model):
            return
        self._former, self.recent = self.recent, Recent()
        for app in self.apps.all():
            app.begin_anew()

    def recent_of(self, service: int) -> Recent:
        """The windows of the model of that `Service`."""
        return self._others.setdefault(service, Recent()) if service else self.recent

    def _recent_of(self, engine: EngineHandle | None) -> Recent:
        """Where times of an engine go: of one that only ends what it runs, nobody reads them."""
        if engine is None:
            return self.recent
        return self._former if engine.replaced else self.recent_of(engine.service)

    def came(self, request: Request) -> None:
        """A request was taken: its program is known from now on."""
        request.figures = self.apps.came(request.app, time.monotonic(), request.message.key)

    def sent(self, request: Request, now_ns: int, baseline_ns: int) -> None:
        """The tokens of a request that were emitted since the last call went out at ``now_ns``.

        ``baseline_ns``: what the engine expects between two tokens of the interactive sessions
        alone; 0 = not known.
        """
        count = request.emitted - request.timed
        if count <= 0:
            return
        # the time that ends now may have begun when the baseline was another one
        baseline, request.baseline_ns = max(baseline_ns, request.baseline_ns), baseline_ns
        recent = self._recent_of(request.engine)
        if baseline_ns:
            recent.baseline_ns = baseline_ns
        if request.engine is not None:  # streams of its program take turns
            baseline = int(baseline * max(request.engine.table.rounds.item(request.slot), 1.0))
        before, since_ns = request.timed, request.sent_ns if request.timed else 0
        request.sent_ns, request.timed = now_ns, request.emitted
        self._count(request, count, before, now_ns, since_ns, baseline, recent)

    @staticmethod
    def _first(request: Request, now_ns: int, is_current: bool) -> None:
        """Its first token goes out: what came of its prompt is known.

        ``is_current``: it is of a model that still serves.
        """
        request.first_ns = now_ns
        app = request.figures
        if app is not None:
            usage = request.usage()
            if is_current:
                app.prompt_tokens += usage.prompt_tokens
                app.cached_tokens += usage.cached_tokens
            app.lane, app.reason = request.lane_now()

    def _count(
        self, request: Request, count: int, before: int, now_ns: int, since_ns: int,
        baseline_ns: int, recent: Recent,
    ) -> None:  # fmt: skip
        """Count tokens of a request behind the first ``before``, which go out at ``now_ns``.

        ``since_ns``: when the token before them went out; 0 = there is none.
        """
        lane, slo = request.lane, request.message.slo
        now_s, app = now_ns / 1e9, request.figures
        is_current = recent is self.recent or recent is not self._former
        recent.at_cap.tokens(now_s, count)
        if app is not None:
            app.sent(now_s, count)
        waited_ms = (now_ns - request.arrived_ns) / 1e6
        if before < FIFTH <= before + count:
            recent.ttf5[lane].add(now_s, waited_ms)
        if since_ns and since_ns - request.first_ns < EARLY_NS:
            recent.early_gaps[lane].add(now_s, (now_ns - since_ns) / 1e6)
        if not since_ns:
            count, since_ns = count - 1, now_ns
            self._first(request, now_ns, is_current)
            recent.ttft[lane].add(now_s, waited_ms)
            self.ttft_histogram.add(waited_ms)
            if slo and slo.target_ttft_ms and waited_ms > slo.target_ttft_ms:
                self.slo_ttft_total += 1
        baseline_ms = baseline_ns / 1e6
        ceiling_ms = (slo and slo.latency_cap or self._latency_cap) * baseline_ms
        for _ in range(count):
            value = (now_ns - since_ns) / 1e6
            since_ns = now_ns
            recent.gaps[lane].add(now_s, value)
            self.gap_histogram.add(value)
            if app is not None and is_current:
                app.gap(now_s, value)
            if not lane:
                recent.at_cap.interactive(now_s, value, ceiling_ms)
                if baseline_ns:
                    recent.over_baseline.add(now_s, value / baseline_ms)
            if slo and slo.target_tbt_ms and value > slo.target_tbt_ms:
                self.slo_tbt_total += 1

    def read_ticks(self, engine: EngineHandle, *, now: bool = False) -> None:
        """Take over the ticks that its ring holds: four times a second, sooner when ``now`` or
        when the ring is half full."""
        ticks = engine.table.ticks
        end = engine.table.header.tick_ring_at
        loads_first()
        at = self._ring_at.get(engine.pid, 0)
        if at == end:
            return
        now_s = time.monotonic()
        if not now and end - at < TICK_READ_MOST and now_s - self._ticks_read_s < TICK_READ_S:
            return
        self._ticks_read_s = now_s
        recent = self._recent_of(engine)
        start = max(at, end - TICK_RING)
        rows = ticks.take(range(start, end), mode="wrap").tolist()  # one by one takes longer
        for i, values in enumerate(rows, start):
            row = TickRow(*values)
            decode_ms = row.decode_ms
            recent.decode_ms.add(now_s, decode_ms)
            self.decode_histogram.add(decode_ms)
            recent.overhead_us.add(now_s, 1000.0 * (row.wall_ms - decode_ms))
            self.batch_histogram.add(row.decode_rows + row.drafted + row.prefill_tokens)
            old = recent.ewma_decode_ms
            recent.ewma_decode_ms = decode_ms if old is None else old + 0.1 * (decode_ms - old)
            if self.on_tick is not None:
                self.on_tick(engine.pid, i, row)
        self._ring_at[engine.pid] = end

    def totals(self, engines: list[EngineHandle]) -> Counters:
        """Return the counters summed over all engines, the gone ones included."""
        return functools.reduce(Counters.plus, self._past.values(), _sum_of(engines))

    def totals_of(self, service: int, engines: list[EngineHandle]) -> Counters:
        """Return the counters summed over one model's ``engines``, the gone ones included."""
        return self._past[service].plus(_sum_of(engines))

    def engine_gone(self, engine: EngineHandle) -> None:
        if engine.pid:
            self.read_ticks(engine, now=True)
            self._past[engine.service] = self.totals_of(engine.service, [engine])
            self._ring_at.pop(engine.pid, None)


def _sum_of(engines: list[EngineHandle]) -> Counters:
    each = (Counters(*_of_header(engine.table.header)) for engine in engines)
    return functools.reduce(Counters.plus, each, Counters())
