"""The parts of the screen above the sessions: lists of lines made of one overview.

Long: one short function for each panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umaserve.dashboard.line import (
    EMPTY,
    FULL,
    MISSING,
    OTHER,
    Line,
    above,
    bar,
    chart,
    clean,
    column,
    ms,
    number,
    percent,
    rule,
)

Values = Mapping[str, Any]

LANES = ("interactive", "background")
WARNINGS = ("warn", "E_PROTO", "E_LIMIT", "E_IO")  # of the log and of clients; others are ours
LABEL = 13  # cells of what stands before a curve or a gauge
PANEL_LABEL = 11
BIG = ("p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95")
TITLES = ("p50", "p95", "p99", "worst", "first", "p95")
NUMBER = 7
LONGEST_CURVE = 120
FAINT_S = 60.0  # an error that old is not news


class _Figure:
    """A column behind an app's gauge; ``least`` is the terminal width from which it is shown."""

    def __init__(
        self, title: str, width: int, cell: Callable[[Values], str], least: int, left: bool = False
    ) -> None:
        self.title, self.width, self.cell, self.least, self.left = title, width, cell, least, left


# from left to right; the name stands before them
APP_FIGURES = (
    _Figure("share", 6, lambda app: percent(app.get("share")), 0),
    _Figure("now", 5, lambda app: number(app.get("active")), 70),
    _Figure("p95", NUMBER, lambda app: ms(app.get("p95_ms")), 30),
    _Figure("cached", NUMBER, lambda app: percent(app.get("cached")), 40),
    _Figure("lane", 13, lambda app: f"  {clean(app.get('lane') or MISSING)}", 55, True),
    _Figure("why", 28, lambda app: f"  {clean(app.get('lane_reason') or '')}", 120, True),
)


def ceiling(metrics: Values) -> float | None:
    """The interactive p95 that the latency cap allows, in ms."""
    baseline, cap = metrics.get("baseline_ms"), metrics.get("latency_cap")
    return baseline * cap if baseline is not None and cap is not None else None


def latency(overview: Values, width: int, rows: int = 1) -> list[Line]:
    """Time between tokens: the curve of each lane ``rows`` lines high, quantiles, the cap."""
    metrics = overview.get("metrics") or {}
    limit = ceiling(metrics)
    count = min(len(BIG), max((width - LABEL - 8) // NUMBER, 0))
    curve = min(max(width - LABEL - NUMBER * count, 0), LONGEST_CURVE)
    head = rule("time between tokens, ms", width - NUMBER * count)
    for title in TITLES[:count]:
        head.add(column(title, NUMBER), "dim")
    lines = [head.pad(width)]
    series = overview.get("tbt_ms") or {}
    for lane in LANES:
        values = series.get(lane) or []
        top = max([v for v in values[-curve:] if v is not None], default=0.0) if curve else 0.0
        mine = limit if lane == "interactive" else None
        if mine is not None:
            top = max(top, 1.25 * mine)
        for row, part in enumerate(chart(values, curve, rows, top, mine)):
            last = row == rows - 1
            line = Line(column(f" {lane}" if last else "", LABEL, left=True), "bold")
            line.extend(part.pad(curve))
            if last:
                for name in BIG[:count]:
                    value = metrics.get(f"{lane}.{name}")
                    if value is None and lane == "interactive":
                        value = metrics.get(name)
                    late = mine is not None and name == "p95_ms" and is_late(metrics)
                    line.add(column(ms(value), NUMBER), "bad" if late else "")
            lines.append(line.pad(width))
    lines.append(_cap(metrics, width, curve).pad(width))
    return lines


def is_late(metrics: Values) -> bool:
    """Whether the cap was missed: each time between tokens over the baseline of its own moment."""
    over, cap = metrics.get("p95_over_baseline"), metrics.get("latency_cap")
    return above(over, cap, lambda value: number(value, 2))


def _cap(metrics: Values, width: int, curve: int) -> Line:
    over, cap = metrics.get("p95_over_baseline"), metrics.get("latency_cap")
    style, share = "bad" if is_late(metrics) else "good", None
    text = Line()
    if over is None or cap is None:
        text.add(f"  {MISSING} of {number(cap, 2)}", "dim")
    else:
        share = over / (1.5 * cap)
        word = "OVER" if is_late(metrics) else "held"
        text.add(f"  {number(over, 2)} of {number(cap, 2)} {word}", style)
        baseline = metrics.get("baseline_ms")
        if baseline is not None:
            text.add(f" × baseline, now {ms(baseline)} ms", "dim")
    room = max(min(curve, width - LABEL - text.cells), 0)
    line = Line(column(" p95 / cap", LABEL, left=True), "bold")
    return line.extend(bar(share, room, style, None if share is None else 1 / 1.5)).extend(text)


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
    """What a decoding row got, and which part of the drafts was right; nothing without drafts."""
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


def apps(overview: Values, width: int, rows: int) -> list[Line]:
    """Who has which share of the tokens, in up to ``rows`` lines after a title; nothing where
    nobody asked for a minute."""
    known = (overview.get("metrics") or {}).get("apps") or {}
    there = [
        (name, app)
        for name, app in known.items()
        if app.get("active") or app.get("share") or app.get("p95_ms") is not None
    ]
    if not there:
        return []
    there.sort(key=lambda item: -(item[1].get("share") or 0.0))
    figures = [figure for figure in APP_FIGURES if width >= figure.least]
    room = max(width - LABEL - sum(figure.width for figure in figures), 0)
    shown = there[:rows]
    title = "apps" if len(shown) == len(there) else f"apps: {len(shown)} of {len(there)}"
    head = rule(title, LABEL + room)
    for figure in figures:
        words = f"  {figure.title}" if figure.left else figure.title
        head.add(column(words, figure.width, figure.left), "dim")
    lines = [head.pad(width)]
    for name, app in shown:
        line = Line(column(f" {clean(name, 40)}", LABEL, left=True), "bold")
        line.extend(bar(app.get("share"), room))
        for figure in figures:
            line.add(column(figure.cell(app), figure.width, figure.left))
        lines.append(line.pad(width))
    return lines


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


def mishap(entry: Values, faint_s: float | None = None) -> Line:
    """One of the newest errors: when, which, how often, of whom, and what was said; dim when it is
    older than ``faint_s``."""
    age, code = entry.get("age_s") or 0.0, clean(entry.get("code"), 13)
    at = clean(entry.get("time"), 8) if age < 86400 else f"{age // 86400:.0f} d ago"
    old = faint_s is not None and age > faint_s
    style = "dim" if old else "warn" if code.startswith(WARNINGS) else "bad"
    line = Line(f" {column(at, 8, left=True)} ", "dim").add(code, style)
    if (entry.get("count") or 1) > 1:
        line.add(f" ×{entry['count']}", style)
    names = [clean(entry.get(name) or "", 24) for name in ("request", "app")]
    who = " of ".join(name for name in names if name)
    text = clean(entry.get("text") or "", 300)
    return line.add(f" {who}:" if who else ":").add(f" {text}", "dim" if old else "")


def mishaps(overview: Values, width: int, rows: int) -> list[Line]:
    """The newest errors and warnings, the last at the bottom."""
    entries = overview.get("errors") or []
    lines = [mishap(entry) for entry in entries[-rows + 1 :]] or [Line(" none so far", "dim")]
    lines = [line.fit(width - 1) for line in lines]  # the next panel may begin at once
    return _panel([rule("last errors", width), *lines], width, rows)


def log(overview: Values, width: int, rows: int) -> list[Line]:
    """The newest lines of the daemon's log."""
    lines = [rule("log", width)]
    entries = overview.get("log") or []
    lines += [_log_line(entry).fit(width) for entry in entries[-rows + 1 :]]
    return _panel(lines, width, rows)


def _panel(lines: list[Line], width: int, rows: int) -> list[Line]:
    blank = [Line() for _ in range(rows - len(lines))]
    return [line.pad(width) for line in [*lines, *blank]]


def newest(overview: Values, width: int) -> Line:
    """What there is one line for: the last error, or else the last line of the log.

    Of a daemon that stops it is the log's line, which says what the daemon waits for.
    """
    errors, entries = overview.get("errors") or [], overview.get("log") or []
    if errors and overview.get("state") != "stopping":
        return mishap(errors[-1], FAINT_S).fit(width)
    return _log_line(entries[-1]).fit(width) if entries else Line()


def _log_line(entry: Values) -> Line:
    level = entry.get("level", "")
    style = {"error": "bad", "warn": "warn"}.get(level, "dim")
    mark = f"{level}: " if style != "dim" else ""
    at, text = clean(entry.get("time", ""), 8), clean(entry.get("text", ""), 300)
    return Line(f" {at} ", "dim").add(mark + text, style)


def efficiency(overview: Values, width: int) -> list[Line]:
    """What larger screens have room for."""
    metrics = overview.get("metrics") or {}

    def row(label: str, *words: str) -> Line:
        line = Line(column(f" {label}", PANEL_LABEL, left=True), "bold")
        return line.add(" · ".join(words)).pad(width)

    idle = metrics.get("gpu_idle_pct")
    return [
        rule("efficiency", width),
        row(
            "decode ms",
            *(f"{q} {ms(metrics.get(f'decode_ms_{q}'))}" for q in ("p50", "p95", "p99")),
        ),
        row(
            "overhead",
            f"p50 {number(metrics.get('tick_overhead_us_p50'), 0)} µs",
            f"p95 {number(metrics.get('tick_overhead_us_p95'), 0)} µs a tick",
        ),
        row(
            "sampling",
            f"{number(metrics.get('sampling_us_per_token'))} µs a token",
            f"{percent(metrics.get('copy_free_ratio'))} in place",
        ),
        row(
            "busy",
            f"{percent(metrics.get('scheduler_efficiency'), 1)} in libllama",
            f"{MISSING if idle is None else f'{idle:.1f}%'} idle with work",
        ),
        row(
            "cost",
            f"{number(metrics.get('cpu_s_per_1k_tokens'), 2)} CPU s for 1k tokens",
            f"{number(metrics.get('tokens_generated_total'))} tokens so far",
        ),
    ]
