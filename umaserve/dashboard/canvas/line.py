"""A line of the screen as styled pieces, and the small shapes that lines are made of."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

Values = Mapping[str, Any]  # an overview of the daemon, or a part of one

MISSING = "-"
SPARKS = "▁▂▃▄▅▆▇█"
FULL, EMPTY, OTHER, MARK = "█", "░", "▒", "│"

# one name for each meaning; the values are rich's style words
STYLES = {
    "": "none",
    "dim": "dim",
    "bold": "bold",
    "head": "reverse",
    "head-good": "reverse green",
    "head-warn": "reverse yellow",
    "head-bad": "reverse bold red",
    "title": "bold cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "bar": "cyan",
    "other": "magenta",
    "select": "reverse",
}

# for terminals that do not take UTF-8
ASCII = str.maketrans(
    {
        **dict(zip(SPARKS, "_.-~=+*#", strict=True)),
        FULL: "#", EMPTY: ".", OTHER: "=", MARK: "|", "─": "-", "·": "|", "▸": ">",
        "Σ": "S", "×": "x", "µ": "u", "…": "~", "“": '"', "”": '"', "↑": "^", "↓": "v",
    }
)  # fmt: skip


class Line:
    """Pieces of text with the name of a style each; ``cells`` is the width on a terminal.

    Two lines with the same ``parts`` look the same.
    """

    __slots__ = ("cells", "parts")

    def __init__(self, text: str = "", style: str = "") -> None:
        self.parts: list[tuple[str, str]] = []
        self.cells = 0
        self.add(text, style)

    def add(self, text: str, style: str = "") -> Line:
        if text:
            self.parts.append((text, style))
            self.cells += len(text) if text.isascii() else cell_len(text)
        return self

    def extend(self, other: Line) -> Line:
        self.parts += other.parts
        self.cells += other.cells
        return self

    def pad(self, width: int) -> Line:
        """Exactly ``width`` cells: blanks added or the end cut off."""
        if self.cells <= width:
            return self.add(" " * (width - self.cells))
        parts, self.parts, self.cells = self.parts, [], 0
        for text, style in parts:
            room = width - self.cells
            size = cell_len(text)
            self.add(text if size <= room else set_cell_size(text, room), style)
            if size >= room:
                break
        return self

    def fit(self, width: int) -> Line:
        """As `pad`; where the end is cut off, ``…`` says so."""
        if self.cells <= width or width < 2:
            return self.pad(width)
        style = next((style for text, style in reversed(self.parts) if text.strip()), "")
        return self.pad(width - 1).add("…", style)

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)

    def pieces(self, width: int, *texts: str) -> Line:
        """Add each of these with `` · `` before it, as long as they fit in ``width`` cells."""
        for text in texts:
            if self.cells + cell_len(text) + 3 > width:
                break
            self.add(f" · {text}")
        return self

    def rich(self) -> Text:
        return Text.assemble(*((text, STYLES[style]) for text, style in self.parts))


def clean(value: Any, limit: int = 80) -> str:
    """Text that clients chose, made safe to print: no control characters, bounded."""
    text = str(value)
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1]
        )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: Any, digits: int = 1, unit: str = "") -> str:
    """A measured value, or ``-`` where there is none."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return f"{text} {unit}" if unit else text


def ms(value: Any) -> str:
    """Milliseconds with about three digits: 0.42, 14.5, 1,204."""
    if not isinstance(value, (int, float)):
        return MISSING
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def above(value: float | None, limit: float | None, shown: Callable[[float], str]) -> bool:
    """Whether a value is above its limit, by more than what is shown hides."""
    if value is None or limit is None:
        return False
    return value > limit and shown(value) != shown(limit)


def percent(share: Any, digits: int = 0) -> str:
    return f"{share:.{digits}%}" if isinstance(share, (int, float)) else MISSING


def duration(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return MISSING
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def column(text: str, width: int, left: bool = False) -> str:
    """``text`` in exactly ``width`` cells."""
    if text.isascii() and len(text) <= width:
        return text.ljust(width) if left else text.rjust(width)
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    blanks = " " * (width - size)
    return text + blanks if left else blanks + text


class Column(NamedTuple):
    """A column of a table; ``least`` is the terminal width from which it is shown."""

    title: str
    width: int
    cell: Callable[[Any], str]
    least: int = 0
    left: bool = False


def spaced(text: str, width: int, left: bool = False) -> str:
    """As `column`, with a blank in front in any case."""
    return " " + column(text, width - 1, left)


def rule(title: str, width: int) -> Line:
    return Line("─ ", "dim").add(title, "title").add(" " + "─" * width, "dim").pad(width)


def bar(share: float | None, width: int, style: str = "bar", mark: float | None = None) -> Line:
    """A gauge of ``share`` (0 to 1) in ``width`` cells, with a mark at the share ``mark``."""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    cells = FULL * filled + EMPTY * (width - filled)
    at = width if mark is None else min(int(mark * width), width - 1)
    line = Line()
    for begin, end, the_style in ((0, filled, style), (filled, width, "dim")):
        if begin <= at < end:
            line.add(cells[begin:at], the_style).add(MARK, "bold")
            begin = at + 1
        line.add(cells[begin:end], the_style)
    return line


def chart(
    values: Sequence[float | None],
    width: int,
    rows: int = 1,
    top: float | None = None,
    limit: float | None = None,
) -> list[Line]:
    """The newest ``width`` values as columns, ``rows`` lines high, what is above ``limit`` marked.

    ``top`` is the value that fills the height (default: the largest shown).
    """
    shown = list(values[-width:]) if width > 0 else []
    known = [value for value in shown if value is not None]
    highest = top if top is not None else max(known, default=0.0)
    lines = []
    heights = [_height(value, highest, 8 * rows) for value in shown]
    styles = ["bad" if limit and value and value > limit else "good" for value in shown]
    for row in reversed(range(rows)):
        line = Line(" " * (width - len(shown)))
        for style, columns in groupby(zip(heights, styles, strict=True), itemgetter(1)):
            levels = (min(height - 8 * row, 8) for height, _ in columns)
            line.add("".join(SPARKS[level - 1] if level > 0 else " " for level in levels), style)
        lines.append(line)
    return lines


def _height(value: float | None, top: float, levels: int) -> int:
    if value is None:
        return 0
    if top <= 0:
        return 1
    return min(max(math.ceil(value / top * levels), 1), levels)


def text(lines: Sequence[Line]) -> str:
    """The screen as text without a terminal."""
    return "\n".join(line.plain.rstrip() for line in lines)


def svg(lines: Sequence[Line], title: str) -> str:
    """The screen as a picture, by rich.

    Without the web fonts that rich's template names, it fetches nothing.
    """
    width = max((line.cells for line in lines), default=1)
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text("\n").join(line.rich() for line in lines), soft_wrap=True)
    picture = console.export_svg(title=title, unique_id="umaserve")
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", picture)
