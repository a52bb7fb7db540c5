"""What the scorecard makes of the engine's counters and of the times at which tokens go out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from umaserve.config import Config
from umaserve.server.figures import scorecard as module
from umaserve.server.figures.scorecard import Scorecard
from umaserve.server.requests.meters import SETTLE_MOST, TICK_READ_MOST, Meters
from umaserve.wire import table as t

MS = 1_000_000


class Clock:
    """Stands for ``time`` where the front reads it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Bench:
    """A scorecard over a real table that the test writes, as an engine would."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.table, fd = t.SessionTable.create(t.TableSpec(4, 65))
        os.close(fd)
        self.engine = self._engine()
        self.meters = Meters(latency_cap=1.2)
        self.supervisor = SimpleNamespace(engines=[self.engine], current=self.engine)
        self.sessions = SimpleNamespace(live={}, queued=lambda: (0, 0))
        self.card = Scorecard(Config(), self.meters, self.sessions, self.supervisor)  # type: ignore[arg-type]

    def _engine(self) -> Any:
        ready = SimpleNamespace(model_name="m", backend="cpu", kv_bytes=1000)
        return SimpleNamespace(
            alive=True, pid=os.getpid(), table=self.table, ready=ready, requests={}, serving=True
        )

    def set(self, **words: int) -> None:
        for name, value in words.items():
            setattr(self.table.header, name, value)

    def read(self, after_s: float = 1.0) -> dict[str, Any]:
        self.clock.now_s += after_s
        return self.card.read()

    def request(self, lane: int = 0, slo: Any = None) -> Any:
        request = SimpleNamespace(
            emitted=0, timed=0, sent_ns=0, baseline_ns=0, lane=lane, told=False,
            arrived_ns=int(self.clock.now_s * 1e9), message=SimpleNamespace(slo=slo),
        )  # fmt: skip
        self.sessions.live[id(request)] = request
        return request

    def token(self, request: Any, gap_ms: float, baseline_ms: float = 0.0, count: int = 1) -> None:
        self.clock.now_s += gap_ms / 1000
        request.emitted += count
        self.meters.tokens_total += count
        self.meters.sent(request, round(self.clock.now_s * 1e9), int(baseline_ms * MS))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("umaserve.server.requests.meters.time", clock)
    yield Bench(clock)


def test_ratios_are_of_the_window(bench: Bench) -> None:
    bench.set(work_ns_total=10**10, decode_ns_total=9 * 10**9, tick_ns_total=10**10)
    bench.read()
    bench.set(work_ns_total=2 * 10**10, decode_ns_total=15 * 10**9, tick_ns_total=18 * 10**9)
    assert bench.read(50.0)["gpu_idle_pct"] == pytest.approx(25.0)  # since the start
    bench.set(work_ns_total=3 * 10**10, decode_ns_total=24 * 10**9, tick_ns_total=28 * 10**9)
    numbers = bench.read(30.0)  # since the second read
    assert numbers["gpu_idle_pct"] == pytest.approx(10.0)
    assert numbers["scheduler_efficiency"] == pytest.approx(0.9)
    assert bench.read(61.0)["gpu_idle_pct"] is None  # no work in the last minute


def test_bytes_a_token_and_the_bandwidth(bench: Bench) -> None:
    assert bench.read()["sum_bmt_mb_per_token"] is None
    assert bench.read()["bmt_budget_gbps"] is None  # none is set
    bench.set(
        bmt_bytes_total=600 * 10**6, bmt_last_bytes=25 * 10**6, bmt_budget_bps=320 * 10**9,
        bmt_measured_bps=123_400_000_000, bmt_trimmed=7,
    )  # fmt: skip
    request = bench.request()
    for _ in range(20):
        bench.token(request, 10.0)
    numbers = bench.read()
    assert numbers["sum_bmt_mb_per_token"] == pytest.approx(30.0)
    assert numbers["bmt_estimate_last_mb"] == 25.0
    assert numbers["bmt_budget_gbps"] == 320.0 and numbers["bmt_measured_gbps"] == 123.4
    assert numbers["bmt_limited_ticks_total"] == 7


def test_words_of_the_guard(bench: Bench) -> None:
    assert bench.read()["prefill_guard_active"] is False
    bench.set(
        guard_active=1, skipped_prefill=3, slow_tokens=4, cost_error_ppm=52_000,
        kv_evictions=5, aborted_chunks=6, aside_tokens=700, preemptions=8, baseline_ns=17_250_000,
        overlapped=30, ticks=40,
    )  # fmt: skip
    bench.table.state[:] = t.WAITING
    bench.table.t_admit_ns[:2] = 1  # these had cells
    numbers = bench.read()
    assert numbers["prefill_guard_active"] is True
    assert numbers["skipped_prefill_due_to_latency_total"] == 3
    assert numbers["slow_tokens_total"] == 4
    assert numbers["cost_model_error"] == 0.052
    assert numbers["parked_sessions"] == 2
    assert numbers["kv_cache_evictions_total"] == 5
    assert numbers["aborted_chunks_total"] == 6
    assert numbers["aside_prompt_tokens_total"] == 700
    assert numbers["preemptions_total"] == 8
    assert numbers["baseline_ms"] == 17.25
    assert numbers["overlap_active"] == 0.75


def test_counters_go_on_over_engines(bench: Bench) -> None:
    bench.set(slow_tokens=4, aside_tokens=10, overlapped=1, bmt_bytes_total=5)
    bench.meters.engine_gone(bench.engine)
    bench.table, fd = t.SessionTable.create(t.TableSpec(4, 65))
    os.close(fd)
    bench.supervisor.engines[:] = [bench._engine()]
    bench.set(slow_tokens=1, aside_tokens=5)
    numbers = bench.read()
    assert numbers["slow_tokens_total"] == 5 and numbers["aside_prompt_tokens_total"] == 15


def test_times_between_tokens_by_lane(bench: Bench) -> None:
    bench.token(bench.request(lane=1), 140.0)
    quick = bench.request()
    bench.token(quick, 40.0)
    for gap in [10.0] * 95 + [30.0] * 5:
        bench.token(quick, gap)
    numbers = bench.read(0.0)
    assert numbers["p95_ms"] == pytest.approx(10.0, rel=0.01)
    assert numbers["p99_ms"] == pytest.approx(30.0, rel=0.01)
    assert numbers["p50_ms"] == numbers["interactive.p50_ms"] == pytest.approx(10.0, rel=0.01)
    assert numbers["ttft_ms_p50"] == pytest.approx(40.0, rel=0.01)
    assert numbers["background.ttft_ms_p95"] == pytest.approx(140.0, rel=0.01)
    assert numbers["background.p95_ms"] is None
    assert numbers["ttft_ms"]["count"] == 2 and numbers["inter_token_ms"]["count"] == 100


def test_a_pause_that_goes_on_is_seen(bench: Bench) -> None:
    request = bench.request()
    bench.token(request, 5.0)
    bench.token(request, 5.0)
    assert bench.read(3.0)["worst_pause_ms"] == pytest.approx(3000.0, rel=1e-6)
    request.told = True
    assert bench.read(1.0)["worst_pause_ms"] == pytest.approx(5.0, rel=1e-6)


def test_the_cap_is_held_over_each_tokens_own_baseline(bench: Bench) -> None:
    request = bench.request()
    bench.token(request, 990.0, 10.0)
    for _ in range(95):  # one second: 11 ms at a baseline of 10, within the cap of 1.2
        bench.token(request, 11.0, 10.0)
    bench.clock.now_s = 1002.001
    for _ in range(50):  # a second of 19 ms at 10: broken; the first of them was long
        bench.token(request, 19.0, 10.0)
    bench.clock.now_s = 1003.0
    numbers = bench.read(0.0)
    assert numbers["tokens_per_s_at_cap"] == pytest.approx(92 / 3, abs=2)
    assert numbers["p95_over_baseline"] == pytest.approx(1.9, rel=0.02)


def test_tokens_that_go_out_together(bench: Bench) -> None:
    request = bench.request(slo=SimpleNamespace(target_ttft_ms=5, target_tbt_ms=9, latency_cap=0))
    bench.token(request, 6.0, count=2)
    bench.token(request, 10.0, count=3)
    numbers = bench.read(0.0)
    assert numbers["slo_violations_ttft_total"] == 1 == numbers["slo_violations_tbt_total"]
    assert numbers["p50_ms"] == pytest.approx(0.0, abs=2e-3)
    assert numbers["inter_token_ms"]["count"] == 4


def test_what_nobody_asks_for_does_not_pile_up(bench: Bench) -> None:
    request = bench.request()
    for _ in range(SETTLE_MOST + 10):
        bench.token(request, 1.0)
        assert len(bench.meters._sent) < SETTLE_MOST
    assert bench.read(0.0)["inter_token_ms"]["count"] == SETTLE_MOST + 9


def test_ticks_that_nobody_read_in_time_are_counted(bench: Bench) -> None:
    seen: list[int] = []
    bench.meters.on_tick = lambda pid, number, row: seen.append(number)
    bench.set(tick_ring_at=5)
    bench.meters.read_ticks(bench.engine)
    bench.set(tick_ring_at=6)
    bench.meters.read_ticks(bench.engine)  # too soon
    assert seen == list(range(5))
    bench.set(tick_ring_at=5 + TICK_READ_MOST)
    bench.meters.read_ticks(bench.engine)
    assert seen == list(range(5 + TICK_READ_MOST))
    bench.set(tick_ring_at=5 + TICK_READ_MOST + 2 * t.TICK_RING)
    bench.meters.read_ticks(bench.engine)
    assert bench.meters.missed_ticks_total == t.TICK_RING


def test_a_read_is_given_again_for_a_moment_only(bench: Bench) -> None:
    first = bench.read()
    assert bench.read(0.04) is first
    bench.meters.requests_total += 1  # a request came
    second = bench.read(0.0)
    assert second is not first and second["requests_total"] == 1
    assert bench.read(0.2) is not second


def test_reading_does_not_wait_for_an_engine_in_a_tick(bench: Bench) -> None:
    """Nothing but memory and /proc is read: an engine that hangs does not matter."""
    bench.set(tick_start_ns=time.monotonic_ns(), busy=t.BUSY_DECODE)
    assert bench.read()["model"] == "m"
