"""What the scorecard makes of the engine's counters and of the times at which tokens go out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from umaserve.config import Config
from umaserve.protocol import Usage
from umaserve.server.figures import scorecard as module
from umaserve.server.figures.scorecard import Scorecard
from umaserve.server.requests.life import Stage
from umaserve.server.requests.meters import apps
from umaserve.server.requests.meters.meters import TICK_READ_MOST, Meters
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
        services = [
            SimpleNamespace(number=0, label="m", engine=self.engine, room=[]),
            SimpleNamespace(number=1, label="search", engine=None, room=[1, 2]),
        ]
        self.sessions = SimpleNamespace(live={}, queued=lambda: (0, 0), services=services)
        self.card = Scorecard(Config(), self.meters, self.sessions, self.supervisor)  # type: ignore[arg-type]

    def _engine(self) -> Any:
        ready = SimpleNamespace(model_name="m", backend="cpu", kv_bytes=1000, memory_bytes=1500)
        return SimpleNamespace(
            alive=True, pid=os.getpid(), table=self.table, ready=ready, requests={}, serving=True,
            replaced=False, service=0,
        )  # fmt: skip

    def set(self, **words: int) -> None:
        for name, value in words.items():
            setattr(self.table.header, name, value)

    def read(self, after_s: float = 1.0) -> dict[str, Any]:
        self.clock.now_s += after_s
        return self.card.read()

    def request(
        self, lane: int = 0, slo: Any = None, app: str = "", usage: Usage | None = None,
        key: str = "",
    ) -> Any:  # fmt: skip
        usage = usage or Usage()
        request = SimpleNamespace(
            emitted=0, timed=0, sent_ns=0, baseline_ns=0, lane=lane, told=False,
            arrived_ns=int(self.clock.now_s * 1e9), message=SimpleNamespace(slo=slo, key=key),
            first_ns=0, figures=None, engine=None, stage=Stage.RUNNING, app=app,
            usage=lambda: usage, lane_now=lambda: (lane, "asked for"),
        )  # fmt: skip
        self.sessions.live[id(request)] = request
        self.meters.came(request)
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
    monkeypatch.setattr("umaserve.server.requests.meters.meters.time", clock)
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


def test_figures_of_each_model(bench: Bench) -> None:
    bench.meters.requests_of[1] += 3
    bench.set(decode_tokens=7, prefill_tokens=9, ticks=5, cells_used=4, cells_total=64)
    request = bench.request()
    for gap_ms in (50.0, 20.0):
        bench.token(request, gap_ms)
    models = bench.read()["models"]
    assert models["m"] == {
        "loaded": True, "requests": 0, "active": 0, "waiting": 0, "tokens": 7,
        "prompt_tokens_computed": 9, "batch_calls": 5, "p95_ms": pytest.approx(20.0, rel=0.05),
        "ttft_ms_p95": pytest.approx(50.0, rel=0.05), "memory_bytes": 1500, "kv_cells_used": 4,
        "kv_cells_total": 64,
    }  # fmt: skip
    assert (models["search"]["requests"], models["search"]["waiting"]) == (3, 2)
    assert models["search"]["loaded"] is False and models["search"]["kv_cells_used"] is None
    bench.engine.alive = False  # its counts are kept
    bench.meters.engine_gone(bench.engine)
    assert bench.read()["models"]["m"]["tokens"] == 7
    assert bench.read()["models"]["search"]["tokens"] == 0


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


def test_memory_read_again_a_token(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine has counted, and a page for each fault of the front."""
    stats = module.process_stats(os.getpid())
    monkeypatch.setattr(module, "process_stats", lambda _: stats)
    bench.set(reread_bytes=5 * 10**6)
    bench.read()
    bench.set(reread_bytes=45 * 10**6)
    stats = stats._replace(major_faults=stats.major_faults + 1)
    for _ in range(20):
        bench.meters.tokens_total += 1
    read = 45 * 10**6 + os.sysconf("SC_PAGE_SIZE")  # since the start
    assert bench.read()["residency_churn_mb_per_token"] == round(read / 20e6, 4)
    stats = stats._replace(major_faults=None)
    assert bench.read()["residency_churn_mb_per_token"] is None


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


def test_words_of_the_prefix_cache(bench: Bench) -> None:
    bench.set(
        cache_asked=9, cache_hits=5, cache_entries=3, cache_bytes=4000, cache_most_bytes=5000,
        cache_evicted_room=7, cache_evicted_memory=2,
    )  # fmt: skip
    numbers = bench.read()
    assert (numbers["cache_prompts_total"], numbers["cache_hits_total"]) == (9, 5)
    assert (numbers["cache_entries"], numbers["cache_ram_bytes"]) == (3, 4000)
    assert numbers["cache_ram_max_bytes"] == 5000
    assert numbers["cache_evictions_total"] == {"room": 7, "memory": 2}


def test_words_of_drafts(bench: Bench) -> None:
    bench.set(decode_tokens=100, decode_rows_total=100)
    assert bench.read()["tokens_per_tick"] == 1.0
    bench.set(
        decode_tokens=300, decode_rows_total=180, draft_tokens=200, draft_accepted=120,
        draft_gained_ns=-1_250_000_000,
    )  # fmt: skip
    numbers = bench.read(60.0)
    assert numbers["tokens_per_tick"] == 2.5  # of the last minute
    assert (numbers["draft_tokens_total"], numbers["draft_accepted_total"]) == (200, 120)
    assert numbers["draft_gained_s"] == -1.25
    assert numbers["draft_accepted_ratio"] == 0.6
    later = bench.read(61.0)  # nothing was decoded in it
    assert later["tokens_per_tick"] is None and later["draft_accepted_ratio"] is None


def test_counters_go_on_over_engines(bench: Bench) -> None:
    bench.set(slow_tokens=4, aside_tokens=10, overlapped=1, bmt_bytes_total=5, cache_hits=2)
    bench.set(draft_tokens=7, draft_accepted=3, draft_gained_ns=10**9)
    bench.meters.engine_gone(bench.engine)
    bench.table, fd = t.SessionTable.create(t.TableSpec(4, 65))
    os.close(fd)
    bench.supervisor.engines[:] = [bench._engine()]
    bench.set(slow_tokens=1, aside_tokens=5, cache_hits=1, draft_tokens=2, draft_accepted=2)
    numbers = bench.read()
    assert numbers["cache_hits_total"] == 3
    assert numbers["slow_tokens_total"] == 5 and numbers["aside_prompt_tokens_total"] == 15
    assert (numbers["draft_tokens_total"], numbers["draft_accepted_total"]) == (9, 5)
    assert numbers["draft_gained_s"] == 1.0


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


def test_the_fifth_token(bench: Bench) -> None:
    alone, slow = bench.request(), bench.request(lane=1)
    for _ in range(5):
        bench.token(alone, 10.0)
    bench.token(slow, 50.0, count=2)  # 100 ms after it came
    bench.token(slow, 100.0, count=4)  # the fifth is among these
    bench.token(bench.request(), 5.0, count=4)
    numbers = bench.read(0.0)
    assert numbers["ttf5_ms_p50"] == numbers["ttf5_ms_p95"] == pytest.approx(50.0, rel=0.01)
    assert numbers["background.ttf5_ms_p95"] == pytest.approx(200.0, rel=0.01)


def test_pauses_early_in_an_answer(bench: Bench) -> None:
    request = bench.request()
    bench.token(request, 500.0)
    bench.token(request, 20.0)
    bench.token(request, 2900.0)  # began 20 ms after the first token
    bench.token(request, 50.0)
    for _ in range(10):
        bench.token(request, 10.0)  # 3.07 s after the first one now
    bench.token(request, 4000.0)
    numbers = bench.read(0.0)
    assert numbers["worst_pause_ms"] == pytest.approx(4000.0)
    assert numbers["worst_pause_first_3s_ms"] == pytest.approx(2900.0)
    assert numbers["background.worst_pause_first_3s_ms"] is None
    bench.token(bench.request(lane=1), 10.0)
    numbers = bench.read(1.0)  # one that goes on counts; the other began too late for it
    assert numbers["background.worst_pause_first_3s_ms"] == pytest.approx(1000.0, rel=1e-6)
    assert numbers["worst_pause_first_3s_ms"] == pytest.approx(2900.0)


def test_who_asks(bench: Bench) -> None:
    nothing = bench.request(app="shell")
    editor = bench.request(app="editor", usage=Usage(100, 75))
    for gap in [10.0] * 96 + [30.0] * 4:
        bench.token(editor, gap)
    bench.token(bench.request(lane=1, app="batch", usage=Usage(50, 0)), 10.0, count=25)
    found = bench.read(0.0)["apps"]
    assert list(found) == ["batch", "editor", "shell"], "who was there last comes first"
    assert found["editor"] == {
        "key": None, "requests": 1, "active": 1, "tokens": 100, "share": 0.8, "cached": 0.75,
        "p95_ms": pytest.approx(10.0, rel=1e-6), "lane": "interactive",
        "lane_reason": "asked for",
    }  # fmt: skip
    assert found["batch"]["lane"] == "background" and found["batch"]["cached"] == 0.0
    assert found["shell"]["tokens"] == 0 and found["shell"]["p95_ms"] is None
    assert found["shell"]["cached"] is None and found["shell"]["share"] == 0.0
    bench.sessions.live.clear()
    nothing.told = True
    later = bench.read(61.0)["apps"]["editor"]
    assert later["active"] == 0 and later["tokens"] == 100
    assert later["share"] is None and later["p95_ms"] is None


def test_figures_of_a_key_are_its_own_whatever_names_it_tells(bench: Bench) -> None:
    bench.request(app="editor")
    bench.request(app="editor", key="alice")
    bench.request(app="alice", key="alice")
    bench.request(app="alice: editor")
    found = bench.read()["apps"]
    assert [row["key"] for row in found.values()].count("alice") == 2
    assert len(found) == 4 and {row["requests"] for row in found.values()} == {1}
    for n in range(2 * apps.MOST):
        bench.request(app=f"app {n}", key="bob")
    bench.clock.now_s += 1.0
    found = bench.read()["apps"]
    assert len(found) == apps.MOST
    assert sum(row["key"] == "bob" for row in found.values()) == apps.MOST - 4


def test_the_p95_of_a_program_is_of_its_newest_times(bench: Bench) -> None:
    request = bench.request(app="editor")
    for gap in [500.0] * 20 + [10.0] * apps.NEWEST:
        bench.token(request, gap)
    assert bench.read(0.0)["apps"]["editor"]["p95_ms"] == pytest.approx(10.0, rel=1e-6)
    for gap in [20.0] * 60:
        bench.token(request, gap)
    assert bench.read(0.0)["apps"]["editor"]["p95_ms"] == pytest.approx(20.0, rel=1e-6)


def test_of_many_programs_the_longest_unused_goes(bench: Bench) -> None:
    first = bench.request(app="first")
    for n in range(apps.MOST - 1):
        bench.clock.now_s += 1.0
        bench.request(app=f"app{n}")
    bench.token(first, 1000.0)
    bench.read(0.0)  # which counts it
    bench.request(app="one more")
    bench.request()
    found = bench.read()["apps"]
    assert len(found) == apps.MOST and {"first", "one more", "unknown"} <= set(found)
    assert "app0" not in found and "app1" not in found
    bench.token(first, 10.0)
    assert bench.read()["apps"]["first"]["tokens"] == 2


def test_headrooms(bench: Bench) -> None:
    assert bench.read()["uma_p95_headroom"] == 1.0
    assert bench.read()["uma_bandwidth_headroom"] is None, "no budget"
    bench.set(bmt_budget_bps=10**9)
    request = bench.request()
    bench.token(request, 5.0)
    for _ in range(20):
        bench.token(request, 11.0, 10.0)
    assert bench.read(0.0)["uma_p95_headroom"] == pytest.approx(0.5, abs=0.06)
    bench.read(5.0)
    bench.set(bmt_bytes_total=2 * 10**9)
    assert bench.read(5.0)["uma_bandwidth_headroom"] == pytest.approx(0.6, abs=0.01)
    for _ in range(20):
        bench.token(request, 13.0, 10.0)
    bench.set(bmt_bytes_total=20 * 10**9)
    numbers = bench.read()
    assert numbers["uma_p95_headroom"] == numbers["uma_bandwidth_headroom"] == 0.0


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


def late(bench: Bench) -> Any:
    """A request with tokens that miss the cap, and a tick; the reading is a second old."""
    request = bench.request(app="editor", usage=Usage(10, 5))
    bench.read()
    bench.token(request, 50.0, 10.0)
    for _ in range(30):
        bench.token(request, 20.0, 10.0)
    bench.meters.recent.decode_ms.add(bench.clock.now_s, 9.0)
    return request


OF_A_MODEL = (
    "p50_ms", "p95_ms", "p99_ms", "p95_over_baseline", "baseline_ms", "ttft_ms_p50", "ttf5_ms_p95",
    "interactive.p95_ms", "decode_ms_p50", "decode_ms_ewma", "tokens_per_s", "avg_batch",
)  # fmt: skip


def test_figures_of_a_model_end_with_it(bench: Bench) -> None:
    bench.meters.serves("first")
    request = late(bench)
    was = bench.read()
    assert was["p95_over_baseline"] == pytest.approx(2.0, rel=0.02)
    assert was["uma_p95_headroom"] == 0.0 and was["apps"]["editor"]["p95_ms"] == 20.0
    bench.meters.serves("first")  # the same weights again
    assert bench.read()["p95_ms"] == was["p95_ms"]
    request.told = True
    bench.set(draft_tokens=200, draft_accepted=120)
    assert bench.read()["draft_accepted_ratio"] == 0.6
    bench.meters.serves("second")
    now = bench.read()
    assert {name: now[name] for name in OF_A_MODEL} == dict.fromkeys(OF_A_MODEL)
    assert now["apps"]["editor"]["p95_ms"] is None and now["uma_p95_headroom"] == 1.0
    assert was["apps"]["editor"]["cached"] == 0.5 and now["apps"]["editor"]["cached"] is None
    assert now["draft_accepted_ratio"] is None and now["draft_accepted_total"] == 120
    assert now["worst_pause_ms"] is None and now["tokens_per_s_at_cap"] == 0.0
    totals = "tokens_generated_total", "requests_total", "inter_token_ms"
    assert {name: now[name] for name in totals} == {name: was[name] for name in totals}


def test_what_an_engine_of_the_model_before_still_sends_is_counted_but_no_figure(
    bench: Bench,
) -> None:
    bench.meters.serves("first")
    request = late(bench)
    request.engine = SimpleNamespace(**{**vars(bench.engine), "replaced": True})
    request.engine.table = SimpleNamespace(rounds=SimpleNamespace(item=lambda _: 1.0))
    request.slot = 0
    bench.meters.serves("second")
    for _ in range(10):
        bench.token(request, 500.0, 10.0)
    now = bench.read()
    assert now["p95_ms"] is None and now["p95_over_baseline"] is None
    assert now["worst_pause_ms"] is None and now["apps"]["editor"]["p95_ms"] is None
    assert now["inter_token_ms"]["count"] == 40 and now["apps"]["editor"]["tokens"] == 41
    other = bench.request()
    bench.token(other, 10.0, 10.0)
    bench.token(other, 11.0, 10.0)
    assert bench.read(0.2)["p95_ms"] == pytest.approx(11.0, rel=0.02)


def test_a_baseline_stays_no_longer_than_the_times_it_is_of(bench: Bench) -> None:
    late(bench)
    assert bench.read()["baseline_ms"] == 10.0
    now = bench.read(61.0)
    assert now["p95_over_baseline"] is None and now["baseline_ms"] is None


def test_tokens_that_go_out_together(bench: Bench) -> None:
    request = bench.request(slo=SimpleNamespace(target_ttft_ms=5, target_tbt_ms=9, latency_cap=0))
    bench.token(request, 6.0, count=2)
    bench.token(request, 10.0, count=3)
    numbers = bench.read(0.0)
    assert numbers["slo_violations_ttft_total"] == 1 == numbers["slo_violations_tbt_total"]
    assert numbers["p50_ms"] == pytest.approx(0.0, abs=2e-3)
    assert numbers["inter_token_ms"]["count"] == 4


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
    assert seen[-1] == bench.engine.table.header.tick_ring_at - 1  # the ring has the newest alone
    assert len(seen) == 5 + TICK_READ_MOST + t.TICK_RING


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
