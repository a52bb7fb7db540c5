"""The four charts of a run, as SVG that takes its colours from the page that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from umaserve.bench.figures import compositions
from umaserve.bench.report.drawing import Axes, Scale, legend, picture, scale_of, steps
from umaserve.bench.result import Result
from umaserve.bench.timeline import Phase, gaps, lane, quantile_curve, token_rates

BIN_S = 0.5
MOST_NAMED = 6  # streams that the legend names
MOST_POINTS = 20_000  # dots of one chart
MOST_CORNERS = 1000  # of a curve of quantiles

# of middling lightness: they stand out from white and from black
STREAMS = ("#2f7fd1", "#12a594", "#8e5fd6", "#c2478f", "#6b8e23", "#0f9bc4")
BACKGROUND, PROMPTS, ASIDE = "#e07b1a", "#d9a514", "#b0703c"
ALONE, MIXED, AUTO, CAP = "#12a594", "#2f7fd1", "#8e5fd6", "#d6403a"
DASH = "6 3"
HEIGHT, AXIS = 300, 46  # of the axes, and of the numbers and the label below them
SECONDS, BETWEEN = "time since the start, s", "time between tokens, ms"

Name = tuple[str, str, str]  # words, colour and dash, as `legend` takes them


class Chart(NamedTuple):
    """``name`` is the figure's in the page and part of a file's; ``caption``: how to read it."""

    name: str
    title: str
    caption: str
    parts: Callable[[Result], tuple[list[Axes], list[Name], int]]


def svg(chart: Chart, result: Result) -> str:
    """An ``svg`` element for a page that defines --ink and --line."""
    fields, names, columns = chart.parts(result)
    words, height = legend(names, fields[-1].top + fields[-1].height + AXIS, columns)
    return picture(chart.title, [*(axes.drawn() for axes in fields), words], height + 4)


def _times(result: Result) -> Scale:
    """The horizontal axis of a chart over time: from the start to the mixed phase's end."""
    return Scale(0.0, result.mixed.end_s - result.origin_s)


def _phases(axes: Axes, result: Result, *, named: bool = True) -> None:
    """Mark the two phases."""
    for phase, name in ((result.alone, "interactive alone"), (result.mixed, "with background")):
        begin, end = phase.begin_s - result.origin_s, phase.end_s - result.origin_s
        axes.band(begin, end, MIXED if phase is result.mixed else ALONE, name if named else "")


def _everything(result: Result) -> Phase:
    return Phase("all", result.origin_s, result.mixed.end_s)


def _cap(result: Result) -> float | None:
    """The interactive p95 that the cap allows, in ms."""
    quiet = result.figures["alone"].p95_ms
    return quiet * result.cap if quiet else None


def _cap_name(result: Result) -> Name:
    return f"cap: {result.cap:g} × p95 alone", CAP, DASH


def _over_time(result: Result) -> tuple[list[Axes], list[Name], int]:
    whole, origin, limit = _everything(result), result.origin_s, _cap(result)
    streams = {
        name: gaps(answers, whole, unfinished=False) for name, answers in result.interactive.items()
    }
    longest = [gap.ms for found in streams.values() for gap in found]
    axes = Axes(_times(result), scale_of([*longest, limit or 0.0], log=True))
    _phases(axes, result)
    axes.grid((SECONDS, BETWEEN))
    most, names, curves = MOST_POINTS // max(len(streams), 1), [], []
    for i, (name, found) in enumerate(streams.items()):
        colour = STREAMS[i % len(STREAMS)]
        thinned = found[:: max(-(-len(found) // most), 1)]
        axes.dots([(gap.end_s - origin, gap.ms) for gap in thinned], colour)
        at, p95 = quantile_curve(found, whole.begin_s, whole.end_s, BIN_S, 0.95)
        curves.append((list(zip(at - origin, p95, strict=True)), colour))
        if i < MOST_NAMED:
            names.append((f"{name}, p95", colour, ""))
    for curve, colour in curves:  # above all dots
        axes.line(curve, colour)
    if limit:
        axes.level(limit, CAP)
        names.append(_cap_name(result))
    return [axes], names, 4


def _cdf(result: Result) -> tuple[list[Axes], list[Name], int]:
    kinds = (
        (result.alone, ALONE, "interactive alone"), (result.mixed, MIXED, "with background"),
        (result.unlabelled, AUTO, "without labels"),
    )  # fmt: skip
    curves = [
        np.sort([gap.ms for gap in gaps(lane(result.answers, True), phase)])
        for phase, _, _ in kinds
    ]
    limit = _cap(result)
    x = scale_of([ms for found in curves for ms in [*found[:1], *found[-1:]]], log=True)
    axes = Axes(x, Scale(0.0, 101.0))
    axes.grid((BETWEEN, "share of times that are shorter, %"), [0, 25, 50, 75, 95, 100])
    names = []
    for found, (phase, colour, name) in zip(curves, kinds, strict=True):
        if not len(found):
            continue
        share = 100 * np.arange(1, len(found) + 1) / len(found)
        keep = np.unique(np.linspace(0, len(found) - 1, MOST_CORNERS).astype(int))
        axes.line(steps([*found[keep], found[-1]], share[keep]), colour)
        p95 = result.figures[phase.name].p95_ms
        names.append((f"{name}: p95 {p95:.2f} ms, {len(found):,} times", colour, ""))
    if limit:
        axes.upright(limit, CAP)
        names.append(_cap_name(result))
    axes.level(95, "var(--ink)", 1.0, "2 3")
    return [axes], names, 2


def _tokens(result: Result) -> tuple[list[Axes], list[Name], int]:
    whole, origin = _everything(result), result.origin_s
    names = [("interactive", MIXED, ""), ("background", BACKGROUND, "")]
    found = [
        token_rates(lane(result.answers, kind), whole.begin_s, whole.end_s, BIN_S)
        for kind in (True, False)
    ]
    edges, rates = (found[0][0] - origin).tolist(), [rate.tolist() for _, rate in found]
    axes = Axes(_times(result), scale_of(map(sum, zip(*rates, strict=True))))
    _phases(axes, result)
    axes.grid((SECONDS, "generated tokens, /s"))
    _stack(axes, edges, rates, [colour for _, colour, _ in names])
    return [axes], names, 4


def _stack(
    axes: Axes, edges: Sequence[float], parts: Sequence[Sequence[float]], colours: Sequence[str]
) -> None:
    """Draw parts one on the other, each constant between two edges."""
    low = [0.0] * (len(edges) - 1)
    for part, colour in zip(parts, colours, strict=True):
        high = [a + b for a, b in zip(low, part, strict=True)]
        axes.area(edges, low, high, colour)
        low = high


_TICK_PARTS = (
    ("decoding rows", MIXED, ""), ("prompt tokens in the ticks", PROMPTS, ""),
    ("prompt tokens beside them", ASIDE, ""),
)  # fmt: skip
_TICK_CURVES = {
    "longest_ms": ("longest tick of a second", STREAMS[3], ""),
    "mean_ms": ("mean tick", STREAMS[2], ""),
    "allowed_ms": ("allowed by the guard", CAP, DASH),
}


def _ticks(result: Result) -> tuple[list[Axes], list[Name], int]:
    found = compositions([s for s in result.samples if s.at_s <= result.mixed.end_s])
    parts = [[getattr(c, name) for c in found] for name in ("decode", "prompt", "aside")]
    curves = {
        name: [(c.end_s - result.origin_s, getattr(c, name) or np.nan) for c in found]
        for name in _TICK_CURVES
    }
    x, each = _times(result), [sum(c) for c in zip(*parts, strict=True)]
    upper = Axes(x, scale_of(each), (24, 190))
    ms = [value for curve in curves.values() for _, value in curve]
    lower = Axes(x, scale_of(ms, log=True), (24 + 190 + 16, 130))
    _phases(upper, result)
    _phases(lower, result, named=False)
    upper.grid(("", "tokens a tick"))
    lower.grid((SECONDS, "tick, ms"))
    if found:
        edges = [c.begin_s - result.origin_s for c in found[:1]]
        edges += [c.end_s - result.origin_s for c in found]
        _stack(upper, edges, parts, [colour for _, colour, _ in _TICK_PARTS])
    for name, (_, colour, dash) in _TICK_CURVES.items():
        lower.line(curves[name], colour, 1.8, dash=dash)
    return [upper, lower], [*_TICK_PARTS, *_TICK_CURVES.values()], 4


CHARTS = (
    Chart(
        "gaps", "Time between tokens of each interactive stream",
        "A dot is one token of one stream, its height the time since the token before it; the "
        "lines are each half second's 95th percentile. The cap is held when at most 5 % of the "
        "dots of the right part are above the dashed line.",
        _over_time,
    ),
    Chart(
        "cdf", "How many times between tokens are how short",
        "Where a curve crosses the dotted line is its 95th percentile. The cap is held when the "
        "curve with background crosses it to the left of the dashed line. Without labels, nobody "
        "has named a lane.",
        _cdf,
    ),
    Chart(
        "tokens", "Generated tokens per second",
        "Of all streams, in half seconds. What background work adds is throughput that the "
        "interactive streams alone leave unused.",
        _tokens,
    ),
    Chart(
        "ticks", "What the ticks are made of",
        "From the daemon's own counters, two readings a second. A tick decodes a row for each "
        "stream that it serves and computes a piece of a prompt where there is room; prompts can "
        "also be computed beside the ticks. Below, how long ticks took in the last second, and "
        "how long the guard let them be.",
        _ticks,
    ),
)  # fmt: skip
