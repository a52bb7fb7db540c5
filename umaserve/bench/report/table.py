"""The scorecard of a run: what the client saw beside what the daemon says of the same minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from umaserve.bench.figures import Figures, accepted_share, prompt_rate
from umaserve.bench.result import PACE_TOKENS, Result, Verdict
from umaserve.metrics.window import quantile

COLUMNS = ("alone", "mixed", "auto", "client", "daemon")
WIDTH = 9


class Row(NamedTuple):
    """A figure, and its cells in the order of ``COLUMNS``.

    Four are the client's: alone, mixed, where nobody labels, and over the daemon's last minute.
    The fifth is the daemon's over the same minute.  "-": not known, or no such thing.
    """

    name: str
    unit: str
    cells: tuple[str, ...]


def shown(value: float | None) -> str:
    """Three digits or more; "-" for none."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


# fmt: off
_SEEN: tuple[tuple[str, str, Callable[[Figures], float | None], str | None], ...] = (
    ("time between tokens, p50", "ms", lambda f: f.p50_ms, "p50_ms"),
    ("time between tokens, p95", "ms", lambda f: f.p95_ms, "p95_ms"),
    ("time between tokens, p99", "ms", lambda f: f.p99_ms, "p99_ms"),
    ("longest pause", "ms", lambda f: f.longest_ms, "worst_pause_ms"),
    ("tokens, interactive", "/s", lambda f: f.interactive_tokens_per_s, None),
    ("tokens, background", "/s", lambda f: f.background_tokens_per_s, None),
    ("tokens, all", "/s", lambda f: f.tokens_per_s, "tokens_per_s"),
)
_DAEMONS = (
    ("tokens while the cap held", "/s", "tokens_per_s_at_cap"),
    ("baseline, predicted", "ms", "baseline_ms"),
    ("bytes moved a token (ΣBMT)", "MB", "sum_bmt_mb_per_token"),
    ("scheduler efficiency", "", "scheduler_efficiency"),
    ("tokens a row and tick", "", "tokens_per_tick"),
    ("copy-free ratio", "", "copy_free_ratio"),
    ("idle with work waiting", "%", "gpu_idle_pct"),
    ("residency churn a token", "MB", "residency_churn_mb_per_token"),
    ("memory (RSS)", "GB", "rss_gb"),
    ("processor, 1000 tokens", "s", "cpu_s_per_1k_tokens"),
)
# fmt: on


def rows(result: Result) -> list[Row]:
    """All of them, the promise first."""
    daemon = result.daemon
    ratio = None if result.verdict is None else result.verdict.value
    over = (None, ratio, None, None, daemon.get("p95_over_baseline"))
    out = [_row("p95 over its baseline", "×", *over)]
    phases = [result.figures[p.name] for p in result.phases]
    for name, unit, value, theirs in _SEEN:
        metric = daemon.get(theirs) if theirs else None
        out.append(_row(name, unit, *map(value, phases), value(result.minute), metric))
    for label, q, ours, theirs in (
        ("first token, p50", 0.5, result.minute.first_p50_ms, "ttft_ms_p50"),
        ("first token, p95", 0.95, result.minute.first_p95_ms, "ttft_ms_p95"),
    ):
        own = [quantile(result.first_ms.get(p.name, []), q) for p in result.phases]
        out.append(_row(label, "ms", *own, ours, daemon.get(theirs)))
    prompts = [prompt_rate(result.samples, p) for p in result.phases]
    out.append(_row("prompt tokens, daemon's count", "/s", *prompts, None, None))
    drafts = [accepted_share(result.samples, p) for p in result.phases]
    out.append(_row("drafted tokens accepted", "%", *drafts, None, None))
    for name, waits in result.desk.items():
        out.append(_row(f"desk: {name}", "×", None, None, waits.ratio, None, None))
    for name, unit, metric_name in _DAEMONS:
        out.append(_row(name, unit, None, None, None, None, daemon.get(metric_name)))
    return out


def _row(name: str, unit: str, *values: float | None) -> Row:
    return Row(name, unit, tuple(map(shown, values)))


def text(result: Result) -> str:
    """The table in at most 80 columns."""
    found = rows(result)
    labels = [f"{row.name}, {row.unit}" if row.unit else row.name for row in found]
    width = max(map(len, labels))
    over = f"{'':{width}}{'this run':>{3 * WIDTH}}{'the last minute':>{2 * WIDTH}}"
    head = f"{'':{width}}" + "".join(f"{name:>{WIDTH}}" for name in COLUMNS)
    body = [
        f"{label:<{width}}" + "".join(f"{cell:>{WIDTH}}" for cell in row.cells)
        for label, row in zip(labels, found, strict=True)
    ]
    return "\n".join([over, head, *body])


def word(verdict: Verdict) -> str:
    """The verdict in a few words."""
    name = verdict.promise
    if verdict.held:
        return f"{name} held"
    return f"{name.upper()} MISSED" if verdict.missed else f"no verdict, {verdict.disturbed}"


def short_text(result: Result) -> str:
    """The verdict in a line, for the end of a table that may have moved the sentence away."""
    verdict = result.verdict
    if verdict is None:
        return "no verdict"
    ratio, cap = verdict.shown
    return f"{word(verdict)}: {ratio} times, the cap is {cap}"


def verdict_text(result: Result) -> str:
    """Say in a sentence whether the promise was kept."""
    verdict = result.verdict
    alone, mixed = (result.figures[p.name] for p in (result.alone, result.mixed))
    if verdict is None:
        return "no verdict: a phase had no time between tokens; give it longer (--seconds)"
    ratio, cap = verdict.shown
    return (
        f"{word(verdict)}: the interactive p95 beside background work, {shown(mixed.p95_ms)} ms, "
        f"is {ratio} times that alone, {shown(alone.p95_ms)} ms; the cap is {cap}"
    )


def unlabelled_text(result: Result) -> str:
    """Return a sentence on the figures of streams whose requests name no lane."""
    pace, longest_ms = result.pace, result.figures[result.unlabelled.name].longest_ms
    if pace is None:
        return f"without labels: no verdict: no stream had {PACE_TOKENS} tokens in a phase"
    ten_ms, promised_ms = pace.shown
    return (
        f"without labels: {word(pace)}: beside long prompts ten tokens took at most {ten_ms} ms "
        f"each, {promised_ms} ms are promised; the longest pause was {shown(longest_ms)} ms"
    )
