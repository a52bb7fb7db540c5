"""Arrival times of tokens as the client saw them, and figures that follow from them.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from umaserve.metrics.window import quantile

CSV_COLUMNS = ("session_id", "token_idx", "ts_ms", "is_interactive")


@dataclass
class Answer:
    """A request; ``session_id`` is STREAM.NUMBER, and ``end_s`` None while the request runs."""

    stream: str
    session_id: str
    interactive: bool
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    end_s: float | None = None

    @property
    def first_token_ms(self) -> float | None:
        return 1e3 * (self.times_s[0] - self.sent_s) if self.times_s else None


class Phase(NamedTuple):
    """A stretch of the run: what happened after ``begin_s`` and not after ``end_s``."""

    name: str
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def holds(self, time_s: float) -> bool:
        return self.begin_s < time_s <= self.end_s


class Gap(NamedTuple):
    """A time between two tokens of one answer, and when it ended."""

    end_s: float
    ms: float


def gaps(answers: Iterable[Answer], phase: Phase, *, unfinished: bool = True) -> list[Gap]:
    """The times between tokens that ended within the phase.

    An answer that is silent when the phase ends has a gap of unknown length.  With ``unfinished``,
    the gap counts up to the phase's end where it is the answer's longest already.  Else it is left
    out.
    """
    out: list[Gap] = []
    for answer in answers:
        times = answer.times_s
        own = [
            Gap(b, 1e3 * (b - a)) for a, b in zip(times, times[1:], strict=False) if phase.holds(b)
        ]
        ended = answer.end_s is not None and answer.end_s <= phase.end_s
        last = max((t for t in times if t <= phase.end_s), default=None)
        if unfinished and last is not None and not ended:
            open_ms = 1e3 * (phase.end_s - last)
            if open_ms > max((gap.ms for gap in own), default=0.0):
                own.append(Gap(phase.end_s, open_ms))
        out += own
    return out


def largest_mean_ms(answers: Iterable[Answer], phase: Phase, count: int) -> float | None:
    """The largest mean of ``count`` consecutive times between tokens of an answer; None: too few.

    Of times that ended within the phase.
    """
    largest = None
    for answer in answers:
        own = np.array([gap.ms for gap in gaps([answer], phase, unfinished=False)])
        if own.size >= count:
            mean = float(np.convolve(own, np.full(count, 1 / count), "valid").max())
            largest = mean if largest is None else max(largest, mean)
    return largest


def first_tokens_ms(answers: Iterable[Answer], phase: Phase) -> list[float]:
    """From the request to its first token, of the first tokens that came within the phase."""
    return [
        answer.first_token_ms
        for answer in answers
        if answer.first_token_ms is not None and phase.holds(answer.times_s[0])
    ]


def tokens_in(answers: Iterable[Answer], phase: Phase) -> int:
    """How many tokens came within the phase."""
    return sum(phase.holds(t) for answer in answers for t in answer.times_s)


def lane(answers: Iterable[Answer], interactive: bool) -> list[Answer]:
    """The answers of one lane."""
    return [answer for answer in answers if answer.interactive == interactive]


def by_stream(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers of each stream, in order of their first request."""
    out: dict[str, list[Answer]] = {}
    for answer in answers:
        out.setdefault(answer.stream, []).append(answer)
    return out


def token_rates(
    answers: Iterable[Answer], begin_s: float, end_s: float, width_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Edges (s) of consecutive stretches of ``width_s`` from ``begin_s`` on, and tokens per second
    in each stretch.

    There is one edge more than rates.  The last stretch ends at ``end_s`` or before.
    """
    count = max(1, int((end_s - begin_s) / width_s + 1e-9))
    edges = begin_s + width_s * np.arange(count + 1)
    times = np.array([t for answer in answers for t in answer.times_s], np.float64)
    found, _ = np.histogram(times, edges)
    return edges, found / width_s


def quantile_curve(
    found: Sequence[Gap], begin_s: float, end_s: float, width_s: float, q: float
) -> tuple[np.ndarray, np.ndarray]:
    """Middles (s) of stretches as in ``token_rates``, and the ``q`` quantile (ms) of the gaps that
    ended in each; NaN where there is none."""
    count = max(1, int((end_s - begin_s) / width_s + 1e-9))
    edges = begin_s + width_s * np.arange(count + 1)
    bins: list[list[float]] = [[] for _ in range(count)]
    for gap in found:
        at = int((gap.end_s - begin_s) / width_s)
        if 0 <= at < count and gap.end_s >= begin_s:
            bins[at].append(gap.ms)
    values = [quantile(values, q) for values in bins]
    return (edges[:-1] + edges[1:]) / 2, np.array(
        [np.nan if value is None else value for value in values], np.float64
    )


def to_csv(answers: Iterable[Answer], origin_s: float) -> str:
    """Return CSV with ``CSV_COLUMNS``, one line a token; ``ts_ms`` counts from ``origin_s``."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for answer in answers:
        for index, time_s in enumerate(answer.times_s):
            at = f"{1e3 * (time_s - origin_s):.3f}"
            writer.writerow([answer.session_id, index, at, int(answer.interactive)])
    return text.getvalue()
