"""The public numbers: one flat object with every name; ``docs/METRICS.md`` says what each means.

``None`` stands for what has no value now (no token in the window, no model) and for what this
system cannot measure (``process_stats.unmeasured``).  Ratios and rates are over the last minute:
the difference between now and the oldest snapshot of the counters that is not older.

Long: one short function for each group of figures.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from umaserve.config import Config
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.figures.by_name import app_rows, model_figures
from umaserve.server.requests.meters.meters import EARLY_NS, Counters, Meters
from umaserve.server.requests.request import LANE_NAMES
from umaserve.server.requests.sessions import Sessions
from umaserve.server.supervision.engine_set import EngineSet
from umaserve.system.process_stats import process_stats
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

SPAN_S = 60.0
SNAPSHOT_S = 1.0
FRESH_S = 0.1  # numbers that young are given again

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LATENCY = (
    "p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95", "ttf5_ms_p50",
    "ttf5_ms_p95", "worst_pause_first_3s_ms",
)  # fmt: skip
RECENT_S = 5.0  # that the bandwidth's headroom is taken over


class _Snapshot(NamedTuple):
    time_s: float
    counters: Counters
    cpu_s: float | None
    major_faults: int | None  # of the front; engines count what they read themselves
    tokens: int
    prompt_tokens: int


def _ratio(part: float, whole: float, factor: float = 1.0) -> float | None:
    return round(factor * part / whole, 4) if whole > 0 else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class Scorecard:
    """``read()`` gives the numbers as of now."""

    def __init__(
        self, config: Config, meters: Meters, sessions: Sessions, supervisor: EngineSet
    ) -> None:
        self._config = config
        self._meters = meters
        self._sessions = sessions
        self._supervisor = supervisor
        self._snapshots: deque[_Snapshot] = deque()
        self._numbers: dict[str, Any] = {}
        self._read_s = -SPAN_S
        self._read_at: tuple[Any, ...] = ()
        self._of = meters.recent  # whose time the snapshots are of
        self._snapshot(meters.started_s)

    def read(self) -> dict[str, Any]:
        """Return the numbers, in an object that is not to be changed.  Calls within ``FRESH_S``
        return the same object, unless a request or an engine came, began or ended."""
        now_s = time.monotonic()
        state = self._state()
        if now_s - self._read_s < FRESH_S and state == self._read_at:
            return self._numbers
        meters = self._meters
        rss_gb, now = self._snapshot(now_s)
        past = self._snapshots[0] if self._snapshots else now
        delta = now.counters.since(past.counters)
        self._numbers = {
            **self._load(now_s, now),
            **self._ticks(now_s, now, delta),
            **self._latency(now_s),
            **self._guard(now),
            **self._bandwidth(now, past),
            **self._drafts(now, delta),
            **self._sampling(delta),
            **self._efficiency(now_s, now, past, rss_gb),
            **self._cache(now, past),
        }
        self._numbers["uma_p95_headroom"] = self._p95_headroom()
        self._numbers["uma_bandwidth_headroom"] = self._bandwidth_headroom(now)
        self._numbers["models"] = model_figures(
            self._sessions.services, meters, self._alive(), now_s
        )
        self._numbers["apps"] = app_rows(meters.apps, self._sessions.live.values(), now_s)
        self._read_s, self._read_at = now_s, state
        return self._numbers

    def _state(self) -> tuple[Any, ...]:
        """Values that change when a request or an engine comes or goes."""
        meters, engine = self._meters, self._supervisor.current
        held = running = 0
        for process in self._supervisor.engines:
            held += len(process.requests)
            if process.alive:
                running += int(np.count_nonzero(process.table.state == t.RUNNING))
        return (
            meters.requests_total, len(self._sessions.live), held, running,
            meters.errors_total.total(), meters.restarts_total, engine,
            engine is not None and engine.serving,
        )  # fmt: skip

    def _alive(self) -> list[EngineHandle]:
        return [engine for engine in self._supervisor.engines if engine.alive]

    def _snapshot(self, now_s: float) -> tuple[float | None, _Snapshot]:
        meters, engines = self._meters, self._alive()
        for engine in engines:
            meters.read_ticks(engine, now=True)
        own = process_stats(os.getpid())
        stats = [own, *(process_stats(engine.pid) for engine in engines)]
        resident = [s.rss_bytes for s in stats if s.rss_bytes is not None]
        cpu = [s.cpu_s for s in stats if s.cpu_s is not None]
        # the children that are gone are engines
        snapshot = _Snapshot(
            now_s,
            meters.totals(engines),
            sum(cpu) + own.children_cpu_s if cpu else None,
            own.major_faults,
            meters.tokens_total,
            meters.prompt_tokens_total,
        )
        snapshots = self._snapshots
        if meters.recent is not self._of:  # another model serves
            snapshots.clear()
            self._of = meters.recent
        if not snapshots or now_s - snapshots[-1].time_s >= SNAPSHOT_S:
            snapshots.append(snapshot)
        while snapshots and snapshots[0].time_s < now_s - SPAN_S:
            snapshots.popleft()
        return (round(sum(resident) / 1e9, 4) if resident else None), snapshot

    def _header(self, word: str, factor: float = 1.0) -> float | None:
        """A word of the current engine's header, as it is or times ``factor``."""
        engine = self._supervisor.current
        if engine is None or engine.ready is None:
            return None
        value = getattr(engine.table.header, word)
        return value if factor == 1.0 else round(value * factor, 4)

    def _known(self, word: str, factor: float = 1.0) -> float | None:
        """Return `_header` of a word whose 0 means that there is no value yet: ``None`` then."""
        return self._header(word, factor) or None

    def _load(self, now_s: float, now: _Snapshot) -> dict[str, Any]:
        meters, engine = self._meters, self._supervisor.current
        ready = engine.ready if engine is not None else None
        active, waiting = 0, list(self._sessions.queued())
        for process in self._supervisor.engines:
            for request in process.requests.values():
                if process.table.state[request.slot] == t.RUNNING:
                    active += 1
                elif not request.told:
                    waiting[request.lane] += 1
        return {
            "model": ready.model_name if ready is not None else None,
            "backend": ready.backend if ready is not None else None,
            "uptime_s": round(now_s - meters.started_s, 3),
            "active_sessions": active,
            "queued_interactive": waiting[0],
            "queued_background": waiting[1],
            "parked_sessions": sum(len(e.table.parked()) for e in self._alive()),
            "requests_total": meters.requests_total,
            "errors_total": dict(meters.errors_total),
            "tokens_generated_total": meters.tokens_total,
            "prompt_tokens_total": meters.prompt_tokens_total,
            "prompt_tokens_computed_total": now.counters.prefill_tokens,
            "cached_tokens_total": now.counters.cached_tokens,
            "engine_restarts_total": meters.restarts_total,
        }

    def _ticks(self, now_s: float, now: _Snapshot, delta: Counters) -> dict[str, Any]:
        meters = self._meters
        ticks = delta.ticks
        rows = delta.decode_rows_total
        prefill = delta.prefill_tokens - delta.aside_tokens
        decode = meters.recent.decode_ms.quantiles(now_s, (0.5, 0.95, 0.99))
        overhead = meters.recent.overhead_us.quantiles(now_s, (0.5, 0.95))
        out: dict[str, Any] = {
            "batch_calls_total": now.counters.ticks,
            "last_batch_size": self._header("last_batch"),
            "avg_batch": _ratio(rows + delta.draft_tokens + prefill, ticks),
            "decode_ms_last": self._known("last_decode_ns", 1e-6),
            "decode_ms_ewma": _round(meters.recent.ewma_decode_ms),
            "tokens_per_tick_decode": _ratio(rows, ticks),
            "tokens_per_tick_prefill": _ratio(prefill, ticks),
            "served_decoders": self._served_decoders(),
            "decode_ms": meters.decode_histogram.snapshot(),
            "batch_size": meters.batch_histogram.snapshot(),
        }
        for name, value in zip(("p50", "p95", "p99"), decode, strict=True):
            out[f"decode_ms_{name}"] = _round(value)
        for name, value in zip(("p50", "p95"), overhead, strict=True):
            out[f"tick_overhead_us_{name}"] = _round(value)
        return out

    def _served_decoders(self) -> int | None:
        at = self._header("tick_ring_at")
        engine = self._supervisor.current
        if not at or engine is None:
            return None
        loads_first()
        return int(engine.table.ticks["decode_rows"][(int(at) - 1) % t.TICK_RING])

    def _latency(self, now_s: float) -> dict[str, Any]:
        meters, recent = self._meters, self._meters.recent
        pauses = self._pauses(now_s)
        out: dict[str, Any] = {}
        for lane, lane_name in enumerate(LANE_NAMES):
            gaps = recent.gaps[lane].quantiles(now_s, (0.5, 0.95, 0.99, 1.0))
            ttft = recent.ttft[lane].quantiles(now_s, (0.5, 0.95))
            ttf5 = recent.ttf5[lane].quantiles(now_s, (0.5, 0.95))
            early = recent.early_gaps[lane].quantiles(now_s, (1.0,))
            for name, value in zip(_LATENCY, (*gaps, *ttft, *ttf5, *early), strict=True):
                out[f"{lane_name}.{name}"] = _round(value)
            names = "worst_pause_ms", "worst_pause_first_3s_ms"
            for name, pause in zip(names, pauses[lane], strict=True):
                worst = f"{lane_name}.{name}"
                if pause > (out[worst] or 0.0):
                    out[worst] = round(pause, 4)
        for name in _LATENCY:
            out[name] = out[f"interactive.{name}"]
        (over,) = recent.over_baseline.quantiles(now_s, (0.95,))
        out["p95_over_baseline"] = _round(over)
        out["baseline_ms"] = self._known("baseline_ns", 1e-6)
        if out["baseline_ms"] is None and over is not None:
            # interactive sessions ended, but the window is still theirs
            out["baseline_ms"] = round(recent.baseline_ns / 1e6, 4) or None
        out["ttft_ms"] = meters.ttft_histogram.snapshot()
        out["inter_token_ms"] = meters.gap_histogram.snapshot()
        return out

    def _pauses(self, now_s: float) -> list[list[float]]:
        """Per lane, the longest time in ms that a running answer has waited for its next token.

        There are two: of all answers, and of those that wait since early in the answer.
        """
        longest = [[0.0, 0.0], [0.0, 0.0]]
        for request in self._sessions.live.values():
            engine = request.engine
            if engine is not None and engine.replaced:
                continue
            if request.timed and not request.told:
                pause_ms, mine = 1000.0 * now_s - request.sent_ns / 1e6, longest[request.lane]
                mine[0] = max(mine[0], pause_ms)
                if request.sent_ns - request.first_ns < EARLY_NS:
                    mine[1] = max(mine[1], pause_ms)
        return longest

    def _guard(self, now: _Snapshot) -> dict[str, Any]:
        active, counters = self._header("guard_active"), now.counters
        return {
            "latency_cap": self._config.latency_cap,
            "reading_ms": self._config.reading_ms,
            "prefill_guard_active": None if active is None else bool(active),
            "ticks_over_budget_total": counters.ticks_over_budget,
            "slow_tokens_total": counters.slow_tokens,
            "slo_violations_ttft_total": self._meters.slo_ttft_total,
            "slo_violations_tbt_total": self._meters.slo_tbt_total,
            "skipped_prefill_due_to_latency_total": counters.skipped_prefill,
            "preemptions_total": counters.preemptions,
            "aborted_chunks_total": counters.aborted_chunks,
            "aside_prompt_tokens_total": counters.aside_tokens,
            "cost_model_error": self._known("cost_error_ppm", 1e-6),
        }

    def _p95_headroom(self) -> float:
        """1: interactive sessions are as quick as alone, or nobody is there; 0: at the cap."""
        over, cap = self._numbers["p95_over_baseline"], self._config.latency_cap
        if over is None or over <= 1.0:
            return 1.0
        return round(max(cap - over, 0.0) / (cap - 1.0), 4) if cap > 1.0 else 0.0

    def _bandwidth_headroom(self, now: _Snapshot) -> float | None:
        """The part of the budget that ticks left free in the last seconds."""
        budget = self._header("bmt_budget_bps")
        old = [s for s in self._snapshots if s.time_s <= now.time_s - RECENT_S]
        if not budget or not old:
            return None
        moved = now.counters.bmt_bytes_total - old[-1].counters.bmt_bytes_total
        return round(max(1.0 - moved / (budget * (now.time_s - old[-1].time_s)), 0.0), 4)

    def _bandwidth(self, now: _Snapshot, past: _Snapshot) -> dict[str, Any]:
        moved = now.counters.bmt_bytes_total - past.counters.bmt_bytes_total
        return {
            "sum_bmt_mb_per_token": _ratio(moved, now.tokens - past.tokens, 1e-6) or None,
            "bmt_estimate_last_mb": self._known("bmt_last_bytes", 1e-6),
            "bmt_budget_gbps": self._known("bmt_budget_bps", 1e-9),
            "bmt_measured_gbps": self._known("bmt_measured_bps", 1e-9),
            "bmt_limited_ticks_total": now.counters.bmt_trimmed,
        }

    def _drafts(self, now: _Snapshot, delta: Counters) -> dict[str, Any]:
        counters = now.counters
        return {
            "tokens_per_tick": _ratio(delta.decode_tokens, delta.decode_rows_total),
            "draft_tokens_total": counters.draft_tokens,
            "draft_accepted_total": counters.draft_accepted,
            "draft_accepted_ratio": _ratio(delta.draft_accepted, delta.draft_tokens),
            "draft_gained_s": round(counters.draft_gained_ns / 1e9, 4),
        }

    def _sampling(self, delta: Counters) -> dict[str, Any]:
        rows = delta.rows_sampled
        return {
            "sampling_ms_last": self._known("last_sample_ns", 1e-6),
            "sampling_us_per_token": _ratio(delta.sample_ns_total, rows, 1e-3),
            "logits_to_first_chunk_ms": self._known("first_chunk_ns", 1e-6),
            # share of ticks whose tokens were published while the next decode ran
            "overlap_active": _ratio(delta.overlapped, delta.ticks),
            "copy_free_ratio": _ratio(delta.rows_in_place, rows),
            "copied_bytes_per_token": _ratio(delta.copied_bytes, rows),
        }

    def _efficiency(
        self, now_s: float, now: _Snapshot, past: _Snapshot, rss_gb: float | None
    ) -> dict[str, Any]:
        delta = now.counters.since(past.counters)
        tokens = now.tokens - past.tokens
        read = cpu_s = None
        if now.major_faults is not None and past.major_faults is not None:
            read = (now.major_faults - past.major_faults) * _PAGE + delta.reread_bytes
        if now.cpu_s is not None and past.cpu_s is not None:
            cpu_s = max(0.0, now.cpu_s - past.cpu_s)
        work_ns = delta.work_ns_total
        idle_ns = max(0, work_ns - delta.decode_ns_total)
        return {
            "tokens_per_s_at_cap": _round(self._meters.recent.at_cap.tokens_per_s(now_s)),
            "gpu_idle_pct": _ratio(idle_ns, work_ns, 100.0),
            "tokens_per_s": _ratio(tokens, now.time_s - past.time_s),
            "scheduler_efficiency": _ratio(delta.decode_ns_total, delta.tick_ns_total),
            "residency_churn_mb_per_token": None if read is None else _ratio(read, tokens, 1e-6),
            "rss_gb": rss_gb,
            "cpu_s_per_1k_tokens": None if cpu_s is None else _ratio(cpu_s, tokens, 1000),
        }

    def _cache(self, now: _Snapshot, past: _Snapshot) -> dict[str, Any]:
        used, total = self._header("cells_used"), self._header("cells_total")
        engine = self._supervisor.current
        resident = None
        if used is not None and total and engine is not None and engine.ready is not None:
            resident = engine.ready.kv_bytes * int(used) // int(total)
        cached = now.counters.cached_tokens - past.counters.cached_tokens
        return {
            "kv_cells_used": used,
            "kv_cells_total": total,
            "kv_cache_hit_ratio": _ratio(cached, now.prompt_tokens - past.prompt_tokens),
            "kv_cache_evictions_total": now.counters.kv_evictions,
            "kv_cache_resident_bytes": resident,
            "cache_prompts_total": now.counters.cache_asked,
            "cache_hits_total": now.counters.cache_hits,
            "cache_entries": self._header("cache_entries"),
            "cache_ram_bytes": self._header("cache_bytes"),
            "cache_ram_max_bytes": self._header("cache_most_bytes"),
            "cache_evictions_total": {
                "room": now.counters.cache_evicted_room,
                "memory": now.counters.cache_evicted_memory,
            },
        }
