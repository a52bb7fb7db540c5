"""Result of a run: its figures, the verdicts on them, and remarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from umaserve.bench.desk import Waits
from umaserve.bench.figures import (
    Others,
    StreamFigures,
    accepted_share,
    compositions,
    figures,
    last_minute,
    others,
    prompt_rate,
)
from umaserve.bench.load import Sample
from umaserve.bench.timeline import Answer, Phase, by_stream, gaps, lane, largest_mean_ms
from umaserve.metrics.window import quantile

FEW = 100  # times between tokens; of fewer, a 95th percentile says little
# CAP: the interactive p95 beside other work over the p95 alone.  PACE: the largest mean of
# PACE_TOKENS times between tokens, in ms, beside prompts that somebody waits for.
CAP, PACE = "cap", "pace"
DIGITS = {CAP: 2, PACE: 1}  # behind the point
PACE_TOKENS = 10  # over so many the pace of a reader is a mean
BUSY = 0.1  # of the cores' time: as much in use by others may lengthen what is measured
REL, ABS_MS = 0.03, 0.3  # how far the daemon's latencies may be from the client's


class Verdict(NamedTuple):
    """Verdict on a promise: kept while ``value`` is at most ``limit``, to the digits shown.

    ``disturbed`` names others who may have made the value larger.  A promise is then never judged
    as missed.
    """

    promise: str  # CAP or PACE
    value: float
    limit: float
    disturbed: str = ""

    @property
    def rounded(self) -> tuple[float, float]:
        """Value and limit, to the digits shown."""
        digits = DIGITS[self.promise]
        return round(self.value, digits), round(self.limit, digits)

    @property
    def held(self) -> bool:
        value, limit = self.rounded
        return value <= limit

    @property
    def missed(self) -> bool:
        return not (self.held or self.disturbed)

    @property
    def shown(self) -> tuple[str, str]:
        """Value and limit as texts."""
        digits = DIGITS[self.promise]
        return f"{self.value:.{digits}f}", f"{self.limit:.{digits}f}"


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
        return Verdict(CAP, busy / quiet, self.cap, self._disturbed(self.mixed))

    @property
    def pace(self) -> Verdict | None:
        """Verdict of the phase without labels; ``None`` when a phase had too few tokens.

        The limit is the pace of a reader (``--reading-ms``), the cap, or half the machine beside a
        second program, whichever is longest.
        """
        ten_ms = largest_mean_ms(lane(self.answers, True), self.unlabelled, PACE_TOKENS)
        alone = [gap.ms for gap in gaps(lane(self.answers, True), self.alone)]
        p95_ms = quantile(alone, 0.95)
        if ten_ms is None or not p95_ms:
            return None
        half_ms = 2.0 * sum(alone) / len(alone)
        limit_ms = max(float(self.daemon["reading_ms"]), self.cap * p95_ms, half_ms)
        return Verdict(PACE, ten_ms, limit_ms, self._disturbed(self.unlabelled))

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
        for seen, before, behind in (
            (quiet, "The daemon was busy with others during the baseline",
             ": it is no clean baseline. --fresh measures a daemon of its own."),
            (busy, "Others used the daemon during the mixed phase too", "."),
            (last, "Others used the daemon in the phase without labels", "."),
        ):  # fmt: skip
            if seen.busy:
                out.append(f"{before} ({_others(seen)}){behind}")
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
            "verdict": _judged(self.verdict, "ratio", "cap"),
            "pace": _judged(self.pace, "ten_ms", "promised_ms"),
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


def _judged(verdict: Verdict | None, value: str, limit: str) -> dict[str, Any] | None:
    """The verdict as JSON tells it; ``value`` and ``limit`` are names."""
    if verdict is None:
        return None
    judged = {"held": verdict.held, **dict(zip((value, limit), verdict.rounded, strict=True))}
    return {**judged, "disturbed": verdict.disturbed or None}


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
