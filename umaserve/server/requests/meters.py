"""What the front counts and times; ``scorecard`` makes the public numbers of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from umaserve.metrics import CapSlices, Histogram, Window
from umaserve.metrics.window import ROW_BOUNDS
from umaserve.server.requests.recent_errors import Client, RecentErrors
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

if TYPE_CHECKING:
    from umaserve.protocol.requests import Slo
    from umaserve.server.engines.handle import EngineHandle
    from umaserve.server.requests.request import Request

# counters of a table's header that go on over engines
SUMMED = (
    t.H_TICKS,
    t.H_DECODE_NS_TOTAL,
    t.H_TICK_NS_TOTAL,
    t.H_SAMPLE_NS_TOTAL,
    t.H_ROWS_SAMPLED,
    t.H_ROWS_IN_PLACE,
    t.H_COPIED_BYTES,
    t.H_DECODE_TOKENS,
    t.H_PREFILL_TOKENS,
    t.H_PREEMPTIONS,
    t.H_TICKS_OVER_BUDGET,
    t.H_DECODE_ROWS_TOTAL,
    t.H_CACHED_TOKENS,
    t.H_OVERLAPPED,
    t.H_WORK_NS_TOTAL,
    t.H_SKIPPED_PREFILL,
    t.H_SLOW_TOKENS,
    t.H_BMT_BYTES_TOTAL,
    t.H_BMT_TRIMMED,
    t.H_KV_EVICTIONS,
    t.H_ABORTED_CHUNKS,
    t.H_ASIDE_TOKENS,
)
_SUMMED = np.array(SUMMED)
TICK_READ_S = 0.25
TICK_READ_MOST = t.TICK_RING // 2  # unread ticks that are not left to wait for that
SETTLE_MOST = 4096  # of what went out and is not counted yet

OnTick = Callable[[int, int, list[float]], None]  # engine's pid, number of the tick, ring row


class Meters:
    """Counters since the start, windows of the last minute.

    Times are those at which a token went out to its client: the clock is read when the frame is
    handed to the socket, so what happens between engine and client is in every number.
    """

    def __init__(self, latency_cap: float = 1.2) -> None:
        self.started_s = time.monotonic()
        self.requests_total = 0
        self.errors_total: Counter[str] = Counter()
        self.recent_errors = RecentErrors()
        self.tokens_total = 0
        self.prompt_tokens_total = 0
        self.slo_ttft_total = 0
        self.slo_tbt_total = 0
        self.restarts_total = 0
        self.missed_ticks_total = 0  # overwritten in the ring before they were read
        self.ttft = (Window(), Window())  # by lane
        self.gaps = (Window(), Window())
        self.at_cap = CapSlices(self.started_s)
        self.ttft_histogram = Histogram()
        self.gap_histogram = Histogram()
        self.decode_histogram = Histogram()
        self.batch_histogram = Histogram(ROW_BOUNDS)
        self.decode_ms = Window()
        self.overhead_us = Window()
        self.ewma_decode_ms: float | None = None
        self.over_baseline = Window()  # interactive times between tokens over their baselines
        self.baseline_ns = 0  # the newest that was known
        self.on_tick: OnTick | None = None
        self._latency_cap = latency_cap
        # what went out and is not counted yet: lane, tokens, when, when the one before (0 = there
        # was none), when the request came, its baseline, its slo
        self._sent: list[tuple[int, int, int, int, int, int, Slo | None]] = []
        self._past = np.zeros(t.HEADER_BYTES // 8, np.int64)  # of engines that are gone
        self._ring_at: dict[int, int] = {}  # by pid
        self._ticks_read_s = 0.0

    def error(self, code: str, text: str, request: str = "", client: Client | None = None) -> None:
        """A client is told of an error, about the request of that id if there is one."""
        self.errors_total[code] += 1
        self.recent_errors.add(code, text, request, client)

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
        if baseline_ns:
            self.baseline_ns = baseline_ns
        since_ns = request.sent_ns if request.timed else 0
        came_ns, slo = request.arrived_ns, request.message.slo
        self._sent.append((request.lane, count, now_ns, since_ns, came_ns, baseline, slo))
        request.sent_ns, request.timed = now_ns, request.emitted
        if len(self._sent) >= SETTLE_MOST:
            self.settle()

    def settle(self) -> None:
        """Count what went out since the last time: to be called before anything is read.

        Several times a second is enough: a token's share of the work is half of what it is right
        after it was sent, when neither code nor counts are in the processor's caches.
        """
        sent, self._sent = self._sent, []
        for lane, count, now_ns, since_ns, came_ns, baseline_ns, slo in sent:
            now_s = now_ns / 1e9
            self.at_cap.tokens(now_s, count)
            if not since_ns:
                count, since_ns = count - 1, now_ns
                value = (now_ns - came_ns) / 1e6
                self.ttft[lane].add(now_s, value)
                self.ttft_histogram.add(value)
                if slo and slo.target_ttft_ms and value > slo.target_ttft_ms:
                    self.slo_ttft_total += 1
            baseline_ms = baseline_ns / 1e6
            ceiling_ms = (slo and slo.latency_cap or self._latency_cap) * baseline_ms
            for _ in range(count):
                value = (now_ns - since_ns) / 1e6
                since_ns = now_ns
                self.gaps[lane].add(now_s, value)
                self.gap_histogram.add(value)
                if not lane:
                    self.at_cap.interactive(now_s, value, ceiling_ms)
                    if baseline_ns:
                        self.over_baseline.add(now_s, value / baseline_ms)
                if slo and slo.target_tbt_ms and value > slo.target_tbt_ms:
                    self.slo_tbt_total += 1

    def read_ticks(self, engine: EngineHandle, *, now: bool = False) -> None:
        """Take over the ticks that its ring holds: four times a second, sooner when ``now`` or
        when the ring is half full."""
        ticks = engine.table.ticks
        end = engine.table.header.item(t.H_TICK_RING_AT)
        loads_first()
        at = self._ring_at.get(engine.pid, 0)
        if at == end:
            return
        now_s = time.monotonic()
        if not now and end - at < TICK_READ_MOST and now_s - self._ticks_read_s < TICK_READ_S:
            return
        self._ticks_read_s = now_s
        self.settle()
        start = max(at, end - t.TICK_RING)
        self.missed_ticks_total += start - at
        for i in range(start, end):
            row = ticks[i % t.TICK_RING].tolist()
            decode_ms = row[t.T_DECODE_MS]
            self.decode_ms.add(now_s, decode_ms)
            self.decode_histogram.add(decode_ms)
            self.overhead_us.add(now_s, 1000.0 * (row[t.T_WALL_MS] - decode_ms))
            self.batch_histogram.add(row[t.T_DECODE_ROWS] + row[t.T_PREFILL_TOKENS])
            old = self.ewma_decode_ms
            self.ewma_decode_ms = decode_ms if old is None else old + 0.1 * (decode_ms - old)
            if self.on_tick is not None:
                self.on_tick(engine.pid, i, row)
        self._ring_at[engine.pid] = end

    def totals(self, engines: list[EngineHandle]) -> np.ndarray:
        """int64[512]: the header's counters summed over all engines, the gone ones included."""
        total = self._past.copy()
        for engine in engines:
            total[_SUMMED] += engine.table.header[_SUMMED]
        return total

    def engine_gone(self, engine: EngineHandle) -> None:
        if engine.pid:
            self.read_ticks(engine, now=True)
            self._past = self.totals([engine])
            self._ring_at.pop(engine.pid, None)
