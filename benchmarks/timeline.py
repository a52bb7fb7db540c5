"""What a client saw of its requests: arrival times of tokens, what follows from them, and CSV.

All times are seconds on the ``perf_counter`` clock of the one client process.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from umaserve.bench import timeline

COLUMNS = ("target", "run", "phase", "session_id", "token_idx", "ts_ms", "is_interactive")
CSV_LIMIT = 300_000
"""Bytes that a compressed CSV may have."""


@dataclass
class Session:
    """One request.

    ``prompt_tokens`` are those that the server says it computed, known at the end; ``text`` is kept
    when it was asked for.
    """

    session_id: str
    interactive: bool
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    prompt_tokens: int = 0
    text: str = ""

    @property
    def first_token_ms(self) -> float | None:
        return 1e3 * (self.times_s[0] - self.sent_s) if self.times_s else None


class Phase(NamedTuple):
    """A stretch of a run and the requests that were alive in it."""

    name: str
    begin_s: float
    end_s: float
    sessions: list[Session]

    holds = timeline.Phase.holds


class Row(NamedTuple):
    """A line of a CSV; ``ts_ms`` counts from the beginning of its phase."""

    target: str
    run: int
    phase: str
    session_id: str
    token_idx: int
    ts_ms: float
    is_interactive: bool


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile, between neighbours linearly; NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else float("nan")


def gaps_ms(phase: Phase, interactive: bool = True) -> list[float]:
    """Times between the tokens of a request that ended within the phase, in ms.

    Gaps that have not ended count as in `umaserve.bench.timeline.gaps`.
    """
    return [gap.ms for gap in timeline.gaps(timeline.lane(phase.sessions, interactive), phase)]


def tokens_in(phase: Phase, interactive: bool | None = None) -> int:
    """Tokens that arrived within the phase; of both kinds of request for None."""
    sessions = phase.sessions
    if interactive is not None:
        sessions = timeline.lane(sessions, interactive)
    return timeline.tokens_in(sessions, phase)


def token_rate(phase: Phase, interactive: bool | None = None) -> float:
    """Tokens per second that arrived within the phase."""
    return tokens_in(phase, interactive) / (phase.end_s - phase.begin_s)


def first_tokens_ms(phase: Phase, interactive: bool = True) -> list[float]:
    """Times to the first token of the requests sent within the phase that have one."""
    return [
        s.first_token_ms
        for s in phase.sessions
        if s.interactive == interactive
        and phase.begin_s <= s.sent_s <= phase.end_s
        and s.first_token_ms is not None
    ]


def completion_groups(
    sessions: Iterable[Session], begin_s: float, end_s: float, within_s: float
) -> list[tuple[float, int]]:
    """(time, prompt tokens) of the first tokens between two times, those that came together added.

    A server that computes several prompts in one batch answers them together.
    """
    done = sorted(
        (s.times_s[0], s.prompt_tokens)
        for s in sessions
        if s.times_s and s.prompt_tokens and begin_s < s.times_s[0] <= end_s
    )
    groups: list[tuple[float, int]] = []
    for at, tokens in done:
        if groups and at - groups[-1][0] <= within_s:
            groups[-1] = (at, groups[-1][1] + tokens)
        else:
            groups.append((at, tokens))
    return groups


def completion_rate(groups: Sequence[tuple[float, int]]) -> float | None:
    """Prompt tokens per second from the first answer to the last; None where there are not two.

    What was answered first was computed before, so it does not count.
    """
    if len(groups) < 2:
        return None
    return sum(tokens for _, tokens in groups[1:]) / (groups[-1][0] - groups[0][0])


def rows_of(phase: Phase, target: str, run: int) -> list[Row]:
    """A row for every token that arrived within the phase."""
    return [
        Row(target, run, phase.name, s.session_id, i, 1e3 * (t - phase.begin_s), s.interactive)
        for s in phase.sessions
        for i, t in enumerate(s.times_s)
        if phase.begin_s < t <= phase.end_s
    ]


def write_csv(path: Path, rows: Sequence[Row], limit: int = CSV_LIMIT) -> int:
    """Write a gzipped CSV of at most ``limit`` bytes; returns how many rows it has.

    Where all rows are more than that, each phase is cut to its first half, and so on.
    """
    kept = list(rows)
    horizon = max((row.ts_ms for row in kept), default=0.0)
    while True:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in kept:
            writer.writerow([*row[:5], f"{row.ts_ms:.3f}", int(row.is_interactive)])
        data = gzip.compress(text.getvalue().encode(), mtime=0)
        if len(data) <= limit or not kept:
            path.write_bytes(data)
            return len(kept)
        horizon /= 2
        kept = [row for row in kept if row.ts_ms <= horizon]


def read_csv(path: Path) -> list[Row]:
    """The rows of `write_csv`."""
    with gzip.open(path, "rt", newline="") as file:
        return [
            Row(
                r["target"], int(r["run"]), r["phase"], r["session_id"], int(r["token_idx"]),
                float(r["ts_ms"]), r["is_interactive"] == "1",
            )
            for r in csv.DictReader(file)
        ]  # fmt: skip
