"""Figures of the phases of a run: as the client saw them, and from the daemon's readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from umaserve.bench.load import Sample
from umaserve.bench.timeline import Answer, Phase, first_tokens_ms, gaps, lane, tokens_in
from umaserve.metrics.window import quantile

WINDOW_S = 60  # of the daemon's figures


@dataclass(frozen=True)
class Figures:
    """Figures of a stretch of time as the client saw it.

    Milliseconds are of interactive answers; ``None`` where there was nothing to measure.
    """

    seconds: float
    gaps: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    longest_ms: float | None
    first_tokens: int
    first_p50_ms: float | None
    first_p95_ms: float | None
    interactive_tokens_per_s: float
    background_tokens_per_s: float
    tokens_per_s: float


class Others(NamedTuple):
    """Work of other clients during a phase: at most so many requests at a reading, and at least
    so many that came."""

    at_once: int
    came: int

    @property
    def busy(self) -> bool:
        return bool(self.at_once or self.came)


def figures(answers: Sequence[Answer], phase: Phase, *, unfinished: bool = True) -> Figures:
    """Return the figures of a phase; ``unfinished`` as for ``gaps``."""
    interactive = lane(answers, True)
    between = [gap.ms for gap in gaps(interactive, phase, unfinished=unfinished)]
    first = first_tokens_ms(interactive, phase)
    rates = [tokens_in(lane(answers, kind), phase) / phase.seconds for kind in (True, False)]
    return Figures(
        seconds=phase.seconds,
        gaps=len(between),
        p50_ms=quantile(between, 0.5),
        p95_ms=quantile(between, 0.95),
        p99_ms=quantile(between, 0.99),
        longest_ms=max(between, default=None),
        first_tokens=len(first),
        first_p50_ms=quantile(first, 0.5),
        first_p95_ms=quantile(first, 0.95),
        interactive_tokens_per_s=rates[0],
        background_tokens_per_s=rates[1],
        tokens_per_s=sum(rates),
    )


def last_minute(answers: Sequence[Answer], now_s: float, uptime_s: float) -> Figures:
    """The client's figures over the window that the daemon's are over at ``now_s``.

    Its latencies are of the running second and the 59 before it, its rate is of the last 60
    seconds or since it started.
    """
    span_s = min(float(WINDOW_S), uptime_s)
    rate = figures(answers, Phase("rate", now_s - span_s, now_s))
    times = figures(answers, Phase("latency", int(now_s) - WINDOW_S + 1, now_s), unfinished=False)
    kept = ("interactive_tokens_per_s", "background_tokens_per_s", "tokens_per_s")
    return replace(times, seconds=span_s, **{name: getattr(rate, name) for name in kept})


def others(samples: Sequence[Sample], phase: Phase) -> Others:
    """Return the work of other clients during the phase."""
    inside = [s for s in samples if phase.holds(s.at_s)]
    if not inside:
        return Others(0, 0)
    before = [s.others_total for s in samples if s.at_s <= phase.begin_s]
    came = inside[-1].others_total - (before[-1] if before else 0)
    return Others(max(s.others_now for s in inside), came)


def prompt_rate(samples: Sequence[Sample], phase: Phase) -> float | None:
    """Prompt tokens that the daemon computed a second, by its own count, from the first reading
    within the phase to the last."""
    inside = [s.metrics for s in samples if phase.holds(s.at_s)]
    if len(inside) < 2:
        return None
    seconds = inside[-1]["uptime_s"] - inside[0]["uptime_s"]
    name = "prompt_tokens_computed_total"
    return (inside[-1][name] - inside[0][name]) / seconds if seconds > 0 else None


def accepted_share(samples: Sequence[Sample], phase: Phase) -> float | None:
    """Percent of the tokens drafted within the phase that were accepted; ``None``: none were."""
    inside = [s.metrics for s in samples if phase.holds(s.at_s)]
    drafted, accepted = (
        inside[-1].get(name, 0) - inside[0].get(name, 0) if inside else 0
        for name in ("draft_tokens_total", "draft_accepted_total")
    )
    return 100 * accepted / drafted if drafted else None


class Composition(NamedTuple):
    """Composition of the ticks between two readings, in tokens a tick on the mean.

    ``mean_ms``, ``longest_ms`` and ``allowed_ms`` are of the last second before the later reading.
    """

    begin_s: float
    end_s: float
    decode: float
    prompt: float
    aside: float
    mean_ms: float | None
    longest_ms: float | None
    allowed_ms: float | None


def compositions(samples: Sequence[Sample]) -> list[Composition]:
    """Return a composition for each pair of successive readings.

    Tokens are 0 where no tick came between two readings.
    """
    out = []
    for a, b in zip(samples, samples[1:], strict=False):
        ticks, decode, computed, aside = (
            b.metrics[name] - a.metrics[name]
            for name in (
                "batch_calls_total",
                "tokens_generated_total",
                "prompt_tokens_computed_total",
                "aside_prompt_tokens_total",
            )
        )
        each = [n / ticks if ticks else 0.0 for n in (decode, max(0, computed - aside), aside)]
        ms = [b.ticks.get(name) for name in ("mean_ms", "longest_ms", "allowed_ms")]
        out.append(Composition(a.at_s, b.at_s, *each, *ms))
    return out


class StreamFigures(NamedTuple):
    """Figures of an interactive stream, alone and beside background work.

    Gaps are counts, and 95th percentiles are of the ms between tokens.
    """

    stream: str
    alone_gaps: int
    mixed_gaps: int
    alone_p95_ms: float | None
    mixed_p95_ms: float | None
