"""What a daemon may say of itself, and the screen that comes of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from umaserve.dashboard import Screen, View

METRICS = {
    "model": "uma-demo",
    "backend": "cpu",
    "uptime_s": 3725.2,
    "active_sessions": 3,
    "queued_interactive": 1,
    "queued_background": 2,
    "requests_total": 41,
    "errors_total": {"E_LIMIT_001": 2, "E_PROTO_003": 1},
    "tokens_generated_total": 12345,
    "tokens_per_s": 321.25,
    "tokens_per_s_at_cap": 300.5,
    "tokens_per_tick_decode": 2.0,
    "tokens_per_tick_prefill": 6.0,
    "decode_ms_p50": 11.0,
    "decode_ms_p95": 15.0,
    "decode_ms_p99": 16.0,
    "p95_ms": 11.5,
    **{f"interactive.{n}": v for n, v in zip(
        ("p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95"),
        (11.0, 11.5, 20.0, 33.0, 40.0, 90.0), strict=True)},
    **{f"background.{n}": v for n, v in zip(
        ("p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95"),
        (21.0, 24.5, 30.0, 1043.0, 140.0, 190.0), strict=True)},
    "baseline_ms": 10.0,
    "latency_cap": 1.2,
    "p95_over_baseline": 1.15,
    "prefill_guard_active": True,
    "skipped_prefill_due_to_latency_total": 17,
    "ticks_over_budget_total": 5,
    "preemptions_total": 7,
    "parked_sessions": 1,
    "kv_cache_evictions_total": 9,
    "bmt_measured_gbps": 5.0,
    "bmt_budget_gbps": 20.0,
    "sum_bmt_mb_per_token": 450.25,
    "rss_gb": 1.234,
    "residency_churn_mb_per_token": 0.25,
    "kv_cells_used": 1024,
    "kv_cells_total": 4096,
    "kv_cache_hit_ratio": 0.5,
    "scheduler_efficiency": 0.973,
    "copy_free_ratio": 1.0,
    "cpu_s_per_1k_tokens": 1.5,
}  # fmt: skip


def app(**fields) -> dict:
    return {
        "requests": 4,
        "active": 1,
        "tokens": 900,
        "share": 0.25,
        "cached": 0.93,
        "p95_ms": 14.25,
        "lane": "interactive",
        "lane_reason": "a short prompt",
        **fields,
    }


APPS = {
    "batch": app(share=0.05, lane="background", lane_reason="asked for", cached=None, active=12),
    "editor": app(),
    "page": app(share=0.7, p95_ms=1204.0, cached=0.0),
    "waits": app(share=None, p95_ms=None, active=1, lane=None, lane_reason=None),
    "gone": app(share=0.0, p95_ms=None, active=0),
}


def session(n: int, **fields) -> dict:
    return {
        "serial": n,
        "id": f"r{n}",
        "conn": "c1",
        "app": "editor",
        "lane": "interactive",
        "state": "decode",
        "prompt_tokens": 9,
        "tokens": n,
        "tok_s": 50.5,
        "p95_ms": 14.25,
        "ttft_ms": 55.0,
        "kv_cells": 120,
        "age_s": 2.0,
        **fields,
    }


def ended(n: int, **fields) -> dict:
    """A request that has ended, as `recent` has it: without its id."""
    return {
        "serial": n, "app": "shell", "key": "", "lane": "background", "lane_reason": "asked for",
        "reason": "stop", "prompt_tokens": 400, "cached_tokens": 300, "completion_tokens": 61,
        "drafted_tokens": 0, "accepted_tokens": 0, "queue_ms": 0.5, "ttft_ms": 100.0,
        "total_ms": 1300.0, "tbt_p50_ms": 19.5, "tbt_p95_ms": 22.5, "age_s": 12.0, **fields,
    }  # fmt: skip


def overview(*sessions: dict, **metrics) -> dict:
    return {
        "event": "metrics",
        "metrics": {**METRICS, **metrics},
        "state": "serving",
        "progress": None,
        "sessions": list(sessions),
        "recent": [],
        "machine": {
            "cpu": 0.42, "gpu": None, "memory_used_bytes": 12.3e9, "memory_total_bytes": 16e9,
        },
        "tbt_ms": {
            "interactive": [None] * 110 + [5.0, 10.0, 11.0, 12.0, 13.0, 6.0, 6.0, None, 6.0, 15.0],
            "background": [20.0] * 120,
        },
        "ticks": {
            "budget_ms": 50.0, "count": 10, "mean_ms": 6.0, "longest_ms": 13.0, "allowed_ms": 12.0,
            "decode_rows": 30, "prefill_tokens": 90,
        },
        "errors": [
            {"time": "12:00:01", "age_s": 90.0, "code": "E_LIMIT_001", "text": "prompt is too long",
             "request": "big", "app": "shell", "count": 1},
            {"time": "12:00:02", "age_s": 3.0, "code": "warn", "text": "the engine died of SIGKILL",
             "request": "", "app": "", "count": 1},
        ],
        "log": [
            {"time": "12:00:01", "level": "info", "text": "serving uma-demo"},
            {"time": "12:00:02", "level": "warn", "text": "the engine died of SIGKILL"},
            {"time": "12:00:03", "level": "info", "text": "serving again"},
        ],
    }  # fmt: skip


def view(*sessions: dict, recent: Sequence[dict] = (), **metrics) -> View:
    out = View(where="/tmp/uma.sock")
    out.update(overview(*sessions, **metrics) | {"recent": list(recent)})
    return out


def figures(*sessions: dict, **metrics) -> View:
    """The operator's view."""
    out = view(*sessions, **metrics)
    out.press("m")
    return out


def rows(the_view: View, width: int = 80, height: int = 24) -> list[str]:
    lines = Screen(width, height).lines(the_view)
    assert len(lines) <= height
    for line in lines:
        assert line.cells == cell_len(line.plain) == width
    return [line.plain for line in lines]
