"""Axes and curves as SVG, in the colours of the page that they stand in.

Coordinates are in pixels of the drawing, from its upper left corner.  A page that shows one defines
``--ink`` for text and ``--line`` for the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 960
LEFT, RIGHT = 64, 12  # beside the axes
LEGEND_ROW, SAMPLE = 20, 22  # of the legend: from row to row, and the mark before a name
MOST_TICKS = 8

Points = Iterable[tuple[float, float]]


class Scale(NamedTuple):
    """The values of an axis; of a logarithmic one, ``low`` is above 0."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the lower end, 1 at the upper end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log(max(v, low)) for v in (low, high, value))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round numbers within the scale: steps, or 1, 2 and 5 of many magnitudes."""
        if self.log and self.high > 10 * self.low:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        else:
            step = _step((self.high - self.low) / MOST_TICKS)
            first = math.ceil(self.low / step - 1e-9)
            found = [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [value for value in found if self.low <= value <= self.high]


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))


def scale_of(values: Iterable[float], *, log: bool = False) -> Scale:
    """A scale for these values and some room: from 0, or logarithmic."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not log:
        return Scale(0.0, 1.05 * max(known, default=1.0))
    return Scale(min(known, default=1.0) / 1.2, 1.2 * max(known, default=1.0), True)


class Axes:
    """A field with two scales; ``place`` is its upper edge and its height.

    What is drawn first lies below.
    """

    def __init__(self, x: Scale, y: Scale, place: tuple[int, int] = (24, 300)) -> None:
        self.x, self.y = x, y
        self.top, self.height = place
        self._parts: list[str] = []

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * self.x.share(x)
        return round(across, 1), round(self.top + self.height * (1.0 - self.y.share(y)), 1)

    def grid(self, labels: tuple[str, str], ticks: Sequence[float] | None = None) -> None:
        """Ticks and their numbers, and what the axes are; no label: an axis without numbers.

        ``ticks``: of the vertical axis, where they are not to be round numbers.
        """
        bottom = self.top + self.height
        lines, texts = [], []
        for value in self.x.ticks():
            at, _ = self._at(value, 0)
            lines.append(f"M{at} {self.top}V{bottom}")
            if labels[0]:
                texts.append(_text(at, bottom + 17, f"{value:g}", "middle"))
        for value in self.y.ticks() if ticks is None else ticks:
            _, at = self._at(0, value)
            lines.append(f"M{LEFT} {at}H{WIDTH - RIGHT}")
            texts.append(_text(LEFT - 7, at + 4, f"{value:g}", "end"))
        if labels[0]:
            texts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, labels[0], "middle"))
        turned = f'transform="translate(14 {self.top + self.height / 2}) rotate(-90)"'
        texts.append(f'<text {turned} text-anchor="middle">{escape(labels[1])}</text>')
        self._path("".join(lines), "var(--line)", 'stroke-width="0.7"')
        self._parts += texts

    def band(self, begin: float, end: float, colour: str, name: str = "") -> None:
        """Mark a stretch of the horizontal axis."""
        left, right = self._at(begin, 0)[0], self._at(end, 0)[0]
        self._parts.append(
            f'<rect x="{left}" y="{self.top}" width="{round(right - left, 1)}" '
            f'height="{self.height}" fill="{colour}" fill-opacity="0.07"/>'
        )
        if name:
            self._parts.append(_text((left + right) / 2, self.top - 7, name, "middle"))

    def dots(self, points: Points, colour: str) -> None:
        """Small half transparent dots; some at one place are one."""
        places = dict.fromkeys(self._at(x, y) for x, y in points)
        path = "".join(f"M{x:g} {y:g}h0" for x, y in places)
        self._path(path, colour, 'stroke-width="3" stroke-linecap="round" stroke-opacity="0.5"')

    def line(self, points: Points, colour: str, width: float = 2.0, *, dash: str = "") -> None:
        """A line, broken where a value is no number; ``dash`` as in SVG."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        for piece in _pieces(points):
            path = "L".join("{:g} {:g}".format(*self._at(x, y)) for x, y in piece)
            self._path(f"M{path}", colour, f'stroke-width="{width:g}"{dashed}')

    def level(self, y: float, colour: str, width: float = 1.8, dash: str = "6 3") -> None:
        """A line at a value of the vertical axis."""
        self.line([(self.x.low, y), (self.x.high, y)], colour, width, dash=dash)

    def upright(self, x: float, colour: str) -> None:
        """A dashed line at a value of the horizontal axis."""
        self.line([(x, self.y.low), (x, self.y.high)], colour, 1.8, dash="6 3")

    def area(self, edges: Sequence[float], low: Sequence[float], high: Sequence[float],
             colour: str) -> None:  # fmt: skip
        """Fill the area between two curves, each constant between two edges."""
        upper = [self._at(x, y) for x, y in steps(edges, high)]
        lower = [self._at(x, y) for x, y in steps(edges, low)]
        path = "L".join(f"{x:g} {y:g}" for x, y in [*upper, *reversed(lower)])
        if path:
            self._parts.append(f'<path d="M{path}Z" fill="{colour}" fill-opacity="0.75"/>')

    def _path(self, path: str, colour: str, more: str) -> None:
        if path:
            self._parts.append(f'<path d="{path}" fill="none" style="stroke:{colour}" {more}/>')

    def drawn(self) -> str:
        """All of it, as elements of an SVG."""
        return "\n".join(self._parts)


def steps(edges: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The corners of a curve that is constant between two edges; one edge more than values."""
    corners = []
    for begin, end, value in zip(edges, edges[1:], values, strict=False):
        corners += [(begin, value), (end, value)]
    return corners


def _pieces(points: Points) -> Iterator[list[tuple[float, float]]]:
    """The stretches of two and more points without a gap."""
    piece: list[tuple[float, float]] = []
    for x, y in [*points, (math.nan, math.nan)]:
        if math.isfinite(x) and math.isfinite(y):
            piece.append((x, y))
            continue
        if len(piece) > 1:
            yield piece
        piece = []


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(names: Sequence[tuple[str, str, str]], top: int, columns: int) -> tuple[str, int]:
    """Names below the axes, and where they end; a name: words, colour and dash of its line."""
    parts, wide = [], (WIDTH - LEFT - RIGHT) // columns
    for i, (words, colour, dash) in enumerate(names):
        x, y = LEFT + i % columns * wide, top + LEGEND_ROW * (i // columns) + 12
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<path d="M{x} {y - 4}h{SAMPLE}" stroke="{colour}" stroke-width="2.4"{dashed}/>'
        )
        parts.append(_text(x + SAMPLE + 7, y, words))
    return "\n".join(parts), top + LEGEND_ROW * -(-len(names) // columns)


def picture(title: str, parts: Sequence[str], height: int) -> str:
    """An ``svg`` element of all that was drawn, for a page."""
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {height}">\n'
        '<g style="fill:var(--ink)" font-family="sans-serif" font-size="13">\n'
        + "\n".join(parts)
        + "\n</g></svg>\n"
    )
