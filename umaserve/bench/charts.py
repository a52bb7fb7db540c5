"""The four charts of a run, with matplotlib (``pip install 'umaserve[bench]'``).

They are PNG files, and SVG that takes its colours from the page that it stands in.

Long: one short function for each chart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from umaserve.bench.result import Result, compositions
from umaserve.bench.timeline import Gap, Phase, gaps, lane, quantile_curve, token_rates

MISSING = (
    "a report needs matplotlib and jinja2, which are not both installed: "
    "pip install 'umaserve[bench]' (without "
    "--report the benchmark runs as it is)"
)
BIN_S = 0.5
MOST_NAMED = 6  # streams that the legend names
MOST_POINTS = 20_000  # dots of one chart
PNG_DPI, DOTS_DPI = 150, 144

# of middling lightness: they stand out from white and from black
STREAMS = ("#2f7fd1", "#12a594", "#8e5fd6", "#c2478f", "#6b8e23", "#0f9bc4")
BACKGROUND, PROMPTS, ASIDE = "#e07b1a", "#d9a514", "#b0703c"
ALONE, MIXED, AUTO, CAP = "#12a594", "#2f7fd1", "#8e5fd6", "#d6403a"

# The page's colours.  An SVG is drawn with stand-ins that appear nowhere else.
_STANDS_FOR = {"#010203": "var(--ink)", "#020304": "var(--line)", "#030405": "var(--paper)"}


class _Theme(NamedTuple):
    ink: str
    line: str
    paper: str


_PAGE = _Theme(*_STANDS_FOR)
_FILE = _Theme("#1b1f24", "#d5dae1", "#ffffff")


class Chart(NamedTuple):
    """``name`` is part of the PNG file's name; ``caption`` says how to read it."""

    name: str
    title: str
    caption: str
    draw: Callable[[Any, Result, _Theme], None]


def available() -> bool:
    """Whether a report can be made: matplotlib draws the charts, and jinja2 writes the page."""
    try:
        import jinja2  # noqa: F401
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def png(chart: Chart, result: Result) -> bytes:
    """For a file: on white, with its title."""
    return _drawn(chart, result, _FILE, chart.title, format="png", dpi=PNG_DPI)


def svg(chart: Chart, result: Result) -> str:
    """An ``svg`` element for an HTML page that defines --ink, --line and --paper.

    The dots, of which there may be thousands, are one picture in it.
    """
    drawn = _drawn(
        chart, result, _PAGE, "", format="svg", dpi=DOTS_DPI, transparent=True,
        metadata=_NO_METADATA,
    )  # fmt: skip
    return _inline(drawn.decode(), chart)


_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def _inline(text: str, chart: Chart) -> str:
    """Without what HTML needs no more: prolog, namespaces, fixed size; ids made the chart's own."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{chart.name}-", text)
    text = re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg height="[^"]*" ([^>]*?)width="[^"]*"',
        r"<svg \1\2", text, count=1,
    )  # fmt: skip
    for stand_in, name in _STANDS_FOR.items():
        text = text.replace(stand_in, name)
    return text.replace("<svg ", f'<svg role="img" aria-label="{chart.title}" ', 1)


def _drawn(chart: Chart, result: Result, theme: _Theme, title: str, **options: Any) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": chart.name,
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": theme.ink,
        "axes.edgecolor": theme.line,
        "axes.labelcolor": theme.ink,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.line,
        "grid.linewidth": 0.6,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.facecolor": theme.paper,
    }
    out = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        chart.draw(figure, result, theme)
        if title:
            figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        figure.savefig(out, **options)
    return out.getvalue()


def _phases(axis: Any, result: Result, theme: _Theme, *, named: bool = True) -> None:
    """Mark the two phases and give the axis its seconds."""
    for phase, name in ((result.alone, "interactive alone"), (result.mixed, "with background")):
        begin, end = phase.begin_s - result.origin_s, phase.end_s - result.origin_s
        colour = MIXED if phase is result.mixed else ALONE
        axis.axvspan(begin, end, color=colour, alpha=0.07, lw=0)
        if named:
            axis.text(
                (begin + end) / 2, 1.01, name, transform=axis.get_xaxis_transform(),
                ha="center", va="bottom", fontsize=9, color=theme.ink,
            )  # fmt: skip
    axis.set(xlim=(0, result.mixed.end_s - result.origin_s), xlabel="time since the start, s")


def _everything(result: Result) -> Phase:
    return Phase("all", result.origin_s, result.mixed.end_s)


def _thinned(found: Sequence[Gap], most: int) -> Sequence[Gap]:
    return found if len(found) <= most else found[:: -(-len(found) // most)]


def _over_time(figure: Any, result: Result, theme: _Theme) -> None:
    axis = figure.subplots()
    whole, origin = _everything(result), result.origin_s
    streams = result.interactive
    for i, (name, answers) in enumerate(streams.items()):
        found = gaps(answers, whole, unfinished=False)
        colour = STREAMS[i % len(STREAMS)]
        dots = _thinned(found, MOST_POINTS // len(streams))
        axis.plot(
            [gap.end_s - origin for gap in dots], [gap.ms for gap in dots],
            ".", ms=3, color=colour, alpha=0.5, rasterized=True, mew=0,
        )  # fmt: skip
        at, p95 = quantile_curve(found, whole.begin_s, whole.end_s, BIN_S, 0.95)
        label = f"{name}, p95" if i < MOST_NAMED else None
        axis.plot(at - origin, p95, color=colour, lw=1.6, label=label)
    quiet = result.figures["alone"].p95_ms
    if quiet:
        axis.axhline(
            quiet * result.cap, color=CAP, lw=1.2, ls="--",
            label=f"cap: {result.cap:g} × p95 alone",
        )  # fmt: skip
    _phases(axis, result, theme)
    axis.set(ylabel="time between tokens, ms", yscale="log")
    _plain_log(axis.yaxis)
    _legend(figure)


def _cdf(figure: Any, result: Result, theme: _Theme) -> None:
    axis = figure.subplots()
    for phase, colour, name in (
        (result.alone, ALONE, "interactive alone"), (result.mixed, MIXED, "with background"),
        (result.unlabelled, AUTO, "without labels"),
    ):  # fmt: skip
        found = np.sort([gap.ms for gap in gaps(lane(result.seen_in(phase), True), phase)])
        if not len(found):
            continue
        share = 100 * np.arange(1, len(found) + 1) / len(found)
        keep = np.unique(np.linspace(0, len(found) - 1, 1000).astype(int))
        p95 = result.figures[phase.name].p95_ms
        axis.step(
            found[keep], share[keep], where="post", color=colour, lw=1.8,
            label=f"{name}: p95 {p95:.2f} ms, {len(found):,} times",
        )  # fmt: skip
    quiet = result.figures["alone"].p95_ms
    if quiet:
        axis.axvline(
            quiet * result.cap, color=CAP, lw=1.2, ls="--",
            label=f"cap: {result.cap:g} × p95 alone",
        )  # fmt: skip
    axis.axhline(95, color=theme.ink, lw=0.8, ls=":")
    axis.set(
        xlabel="time between tokens, ms", ylabel="share of times that are shorter, %",
        ylim=(0, 101), xscale="log", yticks=[0, 25, 50, 75, 95, 100],
    )  # fmt: skip
    _plain_log(axis.xaxis)
    _legend(figure, 2)  # long words


def _tokens(figure: Any, result: Result, theme: _Theme) -> None:
    axis = figure.subplots()
    whole, origin = _everything(result), result.origin_s
    names = (("interactive", True, MIXED), ("background", False, BACKGROUND))
    rates = []
    for _, kind, _ in names:
        edges, rate = token_rates(lane(result.answers, kind), whole.begin_s, whole.end_s, BIN_S)
        rates.append(rate)
    _steps(axis, edges - origin, rates, [n[0] for n in names], [n[2] for n in names])
    axis.set(ylabel="generated tokens, /s", ylim=(0, None))
    _phases(axis, result, theme)
    _legend(figure)


def _steps(
    axis: Any, edges: np.ndarray, parts: Any, labels: Sequence[str], colours: Sequence[str]
) -> None:
    """One on the other, each constant between two edges."""
    heights = [[*part, part[-1]] for part in parts]
    axis.stackplot(edges, heights, labels=labels, colors=colours, alpha=0.75, lw=0, step="post")


_TICK_PARTS = ("decoding rows", "prompt tokens in the ticks", "prompt tokens beside them")
_TICK_CURVES = {
    "longest_ms": "longest tick of a second",
    "mean_ms": "mean tick",
    "allowed_ms": "allowed by the guard",
}


def _ticks(figure: Any, result: Result, theme: _Theme) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    found = compositions([s for s in result.samples if s.at_s <= result.mixed.end_s])
    at = [c.end_s - result.origin_s for c in found]
    if found:
        parts = ([c.decode for c in found], [c.prompt for c in found], [c.aside for c in found])
        edges = np.array([found[0].begin_s - result.origin_s, *at])
        _steps(upper, edges, parts, _TICK_PARTS, (MIXED, PROMPTS, ASIDE))
    upper.set(ylabel="tokens a tick", ylim=(0, None))
    for name, colour, style in (
        ("longest_ms", STREAMS[3], "-"), ("mean_ms", STREAMS[2], "-"), ("allowed_ms", CAP, "--"),
    ):  # fmt: skip
        curve = [np.nan if (v := getattr(c, name)) is None else v for c in found]
        label = _TICK_CURVES[name]
        lower.plot(at, curve, color=colour, ls=style, lw=1.4, label=label)
    lower.set(ylabel="tick, ms", yscale="log")
    _plain_log(lower.yaxis)
    _phases(upper, result, theme)
    _phases(lower, result, theme, named=False)
    upper.set_xlabel("")
    _legend(figure)


def _plain_log(axis: Any) -> None:
    """Numbers as people write them, at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _legend(figure: Any, columns: int = 4) -> None:
    """Of all its axes, below them, so that the time axes of a page are all of one width."""
    figure.legend(loc="outside lower center", ncols=columns)


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
