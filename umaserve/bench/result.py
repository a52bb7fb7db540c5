"""From what was seen to figures, a verdict and what has to be said about them.

Long: all that is said about one measurement stands together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from umaserve.bench.desk import Waits
from umaserve.bench.load import Sample
from umaserve.bench.timeline import (
    Answer,
    Phase,
    by_stream,
    first_tokens_ms,
    gaps,
    lane,
    largest_mean_ms,
    tokens_in,
)
from umaserve.metrics import quantile

WINDOW_S = 60  # of the daemon's figures
FEW = 100  # times between tokens; of fewer, a 95th percentile says little
SEEN_DIGITS = 2  # of a ratio and the cap, behind the point
PACE_DIGITS = 1  # of ms
PACE_TOKENS = 10  # over so many the pace of a reader is a mean
BUSY = 0.1  # of the cores' time: as much in use by others may lengthen what is measured
REL, ABS_MS = 0.03, 0.3  # how far the daemon's latencies may be from the client's


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


class Verdict(NamedTuple):
    """``ratio`` is the interactive p95 beside other work over that alone.  The cap is held while it
    is at most ``cap``, both to the digits that people see.

    ``disturbed`` names others who may have made it larger: a cap that is missed then is not judged.
    """

    ratio: float
    cap: float
    disturbed: str = ""

    @property
    def held(self) -> bool:
        return round(self.ratio, SEEN_DIGITS) <= round(self.cap, SEEN_DIGITS)

    @property
    def missed(self) -> bool:
        return not (self.held or self.disturbed)


class Pace(NamedTuple):
    """``ten_ms`` is the largest mean of ten consecutive times between tokens beside prompts that
    somebody waits for.  The pace is held while it is at most ``promised_ms``.

    Promised is the pace of a reader (``--reading-ms``), the cap, or half the machine beside a
    second program, whichever is longest.  ``disturbed``: as of `Verdict`.
    """

    ten_ms: float
    promised_ms: float
    disturbed: str = ""

    @property
    def held(self) -> bool:
        return round(self.ten_ms, PACE_DIGITS) <= round(self.promised_ms, PACE_DIGITS)

    @property
    def missed(self) -> bool:
        return not (self.held or self.disturbed)


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
    return Figures(
        **{**asdict(times), "seconds": span_s, **{name: getattr(rate, name) for name in kept}}
    )


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


@dataclass
class Result:
    """A finished run.

    In the phase ``unlabelled``, nobody names a lane: the interactive streams are others then.
    ``origin_s`` is where times in files count from.  ``machine`` and ``settings`` say where and how
    the run was made.  ``daemon`` are the daemon's metrics at the end, at ``read_s``.
    ``first_tokens`` are those of short requests with nothing else running ("alone") and just after
    a long prompt ("mixed").  ``desk``: waits of a desk's programs, by name.  ``used_by_others``:
    the share of the cores' time that other programs used before.
    """

    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    own_daemon: bool
    cap: float
    origin_s: float
    alone: Phase
    mixed: Phase
    unlabelled: Phase
    answers: list[Answer]
    samples: list[Sample]
    first_tokens: dict[str, list[Answer]]
    daemon: dict[str, Any]
    read_s: float
    notes: list[str] = field(default_factory=list)
    desk: dict[str, Waits] = field(default_factory=dict)
    used_by_others: float = 0.0

    def __post_init__(self) -> None:
        self.figures = {p.name: figures(self.answers, p) for p in self.phases}
        self.minute = last_minute(self.answers, self.read_s, self.daemon["uptime_s"])
        self.first_ms = {
            name: [ms for a in answers if (ms := a.first_token_ms) is not None]
            for name, answers in self.first_tokens.items()
        }
        self.others = {p.name: others(self.samples, p) for p in self.phases}
        self.streams = [self._stream(name, own) for name, own in self.interactive.items()]
        self.notes += self._remarks()

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        return self.alone, self.mixed, self.unlabelled

    @property
    def interactive(self) -> dict[str, list[Answer]]:
        """The answers of each interactive stream of the two phases with labels."""
        asked = [a for a in lane(self.answers, True) if a.sent_s <= self.mixed.end_s]
        return by_stream(asked)

    def _stream(self, name: str, answers: list[Answer]) -> StreamFigures:
        alone, mixed = ([g.ms for g in gaps(answers, p)] for p in (self.alone, self.mixed))
        p95 = (quantile(alone, 0.95), quantile(mixed, 0.95))
        return StreamFigures(name, len(alone), len(mixed), *p95)

    @property
    def verdict(self) -> Verdict | None:
        """``None`` when a phase had no time between tokens."""
        quiet, busy = (self.figures[p.name].p95_ms for p in (self.alone, self.mixed))
        if not (quiet and busy):
            return None
        return Verdict(busy / quiet, self.cap, self._disturbed(self.mixed))

    @property
    def pace(self) -> Pace | None:
        """Verdict of the phase without labels; ``None`` when a phase had too few tokens."""
        ten_ms = largest_mean_ms(lane(self.answers, True), self.unlabelled, PACE_TOKENS)
        alone = [gap.ms for gap in gaps(lane(self.answers, True), self.alone)]
        p95_ms = quantile(alone, 0.95)
        if ten_ms is None or not p95_ms:
            return None
        half_ms = 2.0 * sum(alone) / len(alone)
        promised_ms = max(float(self.daemon["reading_ms"]), self.cap * p95_ms, half_ms)
        return Pace(ten_ms, promised_ms, self._disturbed(self.unlabelled))

    def _disturbed(self, beside: Phase) -> str:
        if self.used_by_others > BUSY:
            return "others use these cores"
        if any(self.others[p.name].busy for p in (self.alone, beside)):
            return "others use this daemon"
        return ""

    def _remarks(self) -> list[str]:
        out = []
        if self.used_by_others > BUSY:
            out.append(
                f"Others use these cores: {100 * self.used_by_others:.0f} % of their time before "
                "the run. What is measured is theirs too, so a cap that is missed is not judged. "
                "Run it again when they are done."
            )
        quiet, busy, last = (self.others[p.name] for p in self.phases)
        if quiet.busy:
            out.append(
                f"The daemon was busy with others during the baseline ({_others(quiet)}): it is "
                "no clean baseline. --fresh measures a daemon of its own."
            )
        if busy.busy:
            out.append(f"Others used the daemon during the mixed phase too ({_others(busy)}).")
        if last.busy:
            out.append(f"Others used the daemon in the phase without labels ({_others(last)}).")
        fewest = min(self.figures[p.name].gaps for p in self.phases)
        if 0 < fewest < FEW:
            out.append(
                f"One phase has only {fewest} interactive times between tokens: a 95th percentile "
                "of so few says little. A longer run (--seconds) says more."
            )
        if not (quiet.busy or busy.busy):
            for name, ours in (("p95", self.minute.p95_ms), ("p99", self.minute.p99_ms)):
                theirs = self.daemon.get(f"{name}_ms")
                if ours and theirs and abs(ours - theirs) > max(REL * ours, ABS_MS):
                    out.append(
                        f"The daemon's {name} of the last minute ({theirs:.2f} ms) is not the "
                        f"client's ({ours:.2f} ms): the client waited for a processor, or the way "
                        "through the socket took long."
                    )
        return out

    def to_json(self) -> dict[str, Any]:
        """Everything but the single tokens (they are in the CSV)."""
        return {
            "command": self.command,
            "verdict": _judged(self.verdict),
            "pace": _paced(self.pace),
            "notes": self.notes,
            "machine": self.machine,
            "settings": self.settings,
            "own_daemon": self.own_daemon,
            "phases": {
                p.name: {
                    "begin_ms": round(1e3 * (p.begin_s - self.origin_s), 3),
                    "end_ms": round(1e3 * (p.end_s - self.origin_s), 3),
                    **_rounded(asdict(self.figures[p.name])),
                    "prompt_tokens_per_s": _round(prompt_rate(self.samples, p)),
                    "drafts_accepted_pct": _round(accepted_share(self.samples, p)),
                    "own_first_tokens_ms": [_round(ms) for ms in self.first_ms.get(p.name, [])],
                    "others": self.others[p.name]._asdict(),
                }
                for p in self.phases
            },
            "last_minute": {
                "client": _rounded(asdict(self.minute)),
                "daemon": {k: v for k, v in self.daemon.items() if not isinstance(v, dict)},
            },
            "desk": {
                name: _rounded({"alone_ms": w.alone, "desk_ms": w.desk, "ratio": w.ratio})
                for name, w in self.desk.items()
            },
            "streams": [_rounded(s._asdict()) for s in self.streams],
            "ticks": [
                {
                    "begin_ms": round(1e3 * (c.begin_s - self.origin_s), 1),
                    "end_ms": round(1e3 * (c.end_s - self.origin_s), 1),
                    **_rounded({k: v for k, v in c._asdict().items() if not k.endswith("_s")}),
                }
                for c in compositions(self.samples)
            ],
        }


def _judged(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    ratio = round(verdict.ratio, SEEN_DIGITS)
    judged = {"held": verdict.held, "ratio": ratio, "cap": verdict.cap}
    return {**judged, "disturbed": verdict.disturbed or None}


def _paced(pace: Pace | None) -> dict[str, Any] | None:
    if pace is None:
        return None
    ten_ms, promised_ms = round(pace.ten_ms, PACE_DIGITS), round(pace.promised_ms, PACE_DIGITS)
    judged = {"held": pace.held, "ten_ms": ten_ms, "promised_ms": promised_ms}
    return {**judged, "disturbed": pace.disturbed or None}


def _others(seen: Others) -> str:
    parts = []
    if seen.at_once:
        parts.append(f"up to {seen.at_once} at once")
    if seen.came:
        parts.append(f"at least {seen.came} came")
    return "requests of others: " + ", ".join(parts)


def _round(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _round(value) for key, value in values.items()}
