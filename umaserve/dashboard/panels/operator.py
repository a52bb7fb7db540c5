"""The figures of the second view: ticks, memory, and what larger screens have room for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.dashboard.canvas.line import (
    EMPTY,
    FULL,
    MISSING,
    OTHER,
    Line,
    Values,
    above,
    bar,
    clean,
    column,
    ms,
    number,
    percent,
    rule,
)

PANEL_LABEL = 11  # cells of what stands before a gauge


def ticks(overview: Values, tokens_now: float | None, width: int) -> list[Line]:
    """Throughput and what a tick does."""
    metrics, recent = overview.get("metrics") or {}, overview.get("ticks") or {}
    wide = width >= 60
    rates = Line(column(" tokens/s", PANEL_LABEL, left=True), "bold")
    rates.add(f"{number(tokens_now)} now", "bold")
    minute = [f"{number(metrics.get('tokens_per_s'))} over a minute"] if wide else []
    rates.pieces(width, *minute, f"{number(metrics.get('tokens_per_s_at_cap'))} at cap")
    mean, allowed = recent.get("mean_ms"), recent.get("allowed_ms") or recent.get("budget_ms")
    text = f"{ms(mean)} of {ms(allowed)} ms"
    if wide:
        text += f", longest {ms(recent.get('longest_ms'))}"
    late = above(mean, allowed, ms)
    return [
        rule("ticks", width),
        rates.pad(width),
        _gauge("tick", mean, allowed, text, width, "bad" if late else "bar"),
        _shares(metrics, recent, width),
        _bandwidth(metrics, width),
        _guard(metrics, width).pad(width),
    ]


def _gauge(label: str, part: Any, whole: Any, text: str, width: int, style: str = "bar") -> Line:
    line = Line(column(f" {label}", PANEL_LABEL, left=True), "bold")
    room = max(width - PANEL_LABEL - len(text) - 2, 0)
    share = part / whole if part is not None and whole else None
    return line.extend(bar(share, room, style)).add(f" {text}").pad(width)


def _shares(metrics: Values, recent: Values, width: int) -> Line:
    """Decoding rows and prompt tokens of a mean tick, and how they share it."""
    count = recent.get("count")
    if count:
        decode, prefill = recent["decode_rows"] / count, recent["prefill_tokens"] / count
    else:
        decode = metrics.get("tokens_per_tick_decode")
        prefill = metrics.get("tokens_per_tick_prefill")
    words = ("decode", "prefill") if width >= 48 else ("dec", "pre")
    parts = [f"{number(decode)} {words[0]}", f" + {number(prefill)} {words[1]}"]
    text = _drafts(metrics, width - PANEL_LABEL - 2 - len("".join(parts))).join(parts)
    line = Line(column(" batch", PANEL_LABEL, left=True), "bold")
    room = max(width - PANEL_LABEL - len(text) - 2, 0)
    both = (decode or 0) + (prefill or 0)
    if both:
        part = round(room * (decode or 0) / both)
        line.add(FULL * part, "bar").add(OTHER * (room - part), "other")
    else:
        line.add(EMPTY * room, "dim")
    return line.add(f" {text}").pad(width)


def _drafts(metrics: Values, room: int) -> str:
    """Return tokens per decoding row and the acceptance rate of drafts; empty without drafts."""
    got, right = metrics.get("tokens_per_tick"), metrics.get("draft_accepted_ratio")
    if right is None or got is None:
        return ""
    whole = f" ×{number(got, 2)} ({percent(right)} right)"
    return whole if len(whole) <= room else f" ×{number(got)}"


def _bandwidth(metrics: Values, width: int) -> Line:
    used, budget = metrics.get("bmt_measured_gbps"), metrics.get("bmt_budget_gbps")
    text = f"{number(used)} of {number(budget)} GB/s"
    if width >= 60:
        text += f" · {number(metrics.get('sum_bmt_mb_per_token'))} MB a token"
    over = above(used, budget, number)
    return _gauge("ΣBMT", used, budget, text, width, "warn" if over else "bar")


def _guard(metrics: Values, width: int) -> Line:
    active, wide = metrics.get("prefill_guard_active"), width >= 60
    line = Line(column(" guard", PANEL_LABEL, left=True), "bold")
    if active is None:
        line.add(MISSING)
    else:
        line.add("holding" if active else "idle", "warn" if active else "good")
    held = number(metrics.get("skipped_prefill_due_to_latency_total"))
    late = number(metrics.get("ticks_over_budget_total"))
    words = (" prefills back", " ticks") if wide else ("", "")
    return line.pieces(width, f"held {held}{words[0]}", f"{late} late{words[1]}")


def memory(overview: Values, width: int) -> list[Line]:
    """KV cells, cache, resident memory, errors."""
    metrics = overview.get("metrics") or {}
    used, total = metrics.get("kv_cells_used"), metrics.get("kv_cells_total")
    hits, kept = metrics.get("kv_cache_hit_ratio"), metrics.get("cache_ram_bytes")
    size = f" · {number(kept / 1e6, 0, 'MB')}" if kept else ""
    parked = Line(column(" parked", PANEL_LABEL, left=True), "bold")
    parked.add(number(metrics.get("parked_sessions")))
    parked.pieces(
        width,
        f"evicted {number(metrics.get('kv_cache_evictions_total'))}",
        f"preempted {number(metrics.get('preemptions_total'))}",
    )
    rss = Line(column(" RSS", PANEL_LABEL, left=True), "bold")
    rss.add(number(metrics.get("rss_gb"), 2, "GB"))
    churn = number(metrics.get("residency_churn_mb_per_token"), 2)
    rss.pieces(width, f"churn {churn} MB/token")
    return [
        rule("memory", width),
        _gauge("KV cells", used, total, f"{number(used)} of {number(total)}", width),
        _gauge("cache", hits, 1, f"{percent(hits)} of prompts{size}", width),
        parked.pad(width),
        rss.pad(width),
        _errors(metrics, width).pad(width),
    ]


def _errors(metrics: Values, width: int) -> Line:
    """How many, engines that were replaced, then the codes that there is room for, the most
    frequent first."""
    errors = metrics.get("errors_total")
    line = Line(column(" errors", PANEL_LABEL, left=True), "bold")
    if not isinstance(errors, Mapping):
        return line.add(number(errors), "bad" if errors else "")
    count = sum(errors.values())
    line.add(number(count), "bad" if count else "")
    restarts = metrics.get("engine_restarts_total")
    if restarts:
        line.add(f" · {number(restarts)} restart{'s' * (restarts != 1)}", "warn")
    codes = sorted(errors.items(), key=lambda item: -item[1])
    return line.pieces(width - 1, *(f"{clean(code, 13)} {times}" for code, times in codes))


def efficiency(overview: Values, width: int) -> list[Line]:
    """Return the figures that only larger screens have room for."""
    metrics = overview.get("metrics") or {}

    def row(label: str, *words: str) -> Line:
        line = Line(column(f" {label}", PANEL_LABEL, left=True), "bold")
        return line.add(words[0]).pieces(width, *words[1:]).pad(width)

    idle = metrics.get("gpu_idle_pct")
    return [
        rule("efficiency", width),
        row("decode ms",
            *(f"{q} {ms(metrics.get(f'decode_ms_{q}'))}" for q in ("p50", "p95", "p99"))),
        row("overhead", f"p50 {number(metrics.get('tick_overhead_us_p50'), 0)} µs",
            f"p95 {number(metrics.get('tick_overhead_us_p95'), 0)} µs a tick"),
        row("sampling", f"{number(metrics.get('sampling_us_per_token'))} µs a token",
            f"{percent(metrics.get('copy_free_ratio'))} in place"),
        row("busy", f"{percent(metrics.get('scheduler_efficiency'), 1)} in libllama",
            f"{MISSING if idle is None else f'{idle:.1f}%'} idle with work"),
        row("cost", f"{number(metrics.get('cpu_s_per_1k_tokens'), 2)} CPU s for 1k tokens",
            f"{number(metrics.get('tokens_generated_total'))} tokens so far"),
    ]  # fmt: skip
