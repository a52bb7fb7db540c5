"""From a ``View`` to lines: pure, no terminal and no clock in here.

The layout is by hand: rich's tables and panels would cost some twenty milliseconds a frame, in the
process that also passes the tokens on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.dashboard import table
from umaserve.dashboard.canvas.line import Line, clean, column, duration
from umaserve.dashboard.help import help_lines, key_line
from umaserve.dashboard.panels import news, operator
from umaserve.dashboard.panels.apps import apps
from umaserve.dashboard.panels.latency import cap, latency
from umaserve.dashboard.panels.machine import machine
from umaserve.dashboard.panels.sentence import PLAIN, WARN, sentence
from umaserve.dashboard.view import View

SIDE_BY_SIDE = 150  # columns from which there is more beside each other
NO_APPS = 17  # lines up to which there are no apps, nor the operator's panels
NO_NEWS = 15  # lines up to which there is no last error
NO_MACHINE = 11  # lines up to which the machine has no bars, and curves are missing below 9


class Screen:
    """``lines`` for a terminal of ``width`` x ``height`` cells."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width = max(width, 1)
        self.height = max(height, 1)

    def lines(self, view: View) -> list[Line]:
        """At most ``height`` lines of exactly ``width`` cells.  Whatever is missing is ``-``."""
        if view.note:
            rows = [self._first(view), Line()]
            rows += [Line(f" {clean(row, 400)}") for row in view.note.split("\n")]
            return [line.pad(self.width) for line in rows[: self.height]]
        body = self._body(view, self.height)
        footer = [self._footer(view)] if self.height > 2 else []
        told = self._news(view.overview)
        room = self.height - 1 - len(footer)
        middle: list[Line] | None = None
        row = view.chosen if view.details else None
        if view.help:
            middle = help_lines(self.width, room)
        elif view.models is not None:
            middle = table.models(view, self.width, max(room - len(body) - len(told), 4))
        elif row is not None:
            middle = table.details(row, self.width)
        if middle is not None:
            # what there is no room for beside it goes, the newest error first
            if len(body) + len(told) + len(middle) > room:
                told = []
            for height in (NO_APPS, NO_MACHINE, 0):
                if len(body) + len(middle) > room:
                    body = self._body(view, height)
        room -= len(body) + len(told)
        if middle is None:
            middle = table.requests(view, self.width, room)
        middle = middle[: max(room, 0)]
        middle += [Line()] * (room - len(middle))
        lines = [self._first(view), *body, *middle, *told, *footer][: self.height]
        return [line.pad(self.width) for line in lines]

    def _first(self, view: View) -> Line:
        """The sentence, and whether the screen is held."""
        if view.note:
            text, style = f"No daemon at {clean(view.where, 60)}", WARN
        else:
            text, style = sentence(view.overview, view.tokens_now)
        mark = " PAUSED " if view.paused and not view.note else ""
        room = max(self.width - len(mark), 0)
        return Line(column(f" {text}", room, left=True), style or PLAIN).add(mark, "bold")

    def _about(self, view: View) -> Line:
        metrics = view.overview.get("metrics") or {}
        words = [clean(metrics.get(name) or "", 40) for name in ("model", "backend")]
        words += [
            f"{clean(each.get('id') or '', 40)} ({_state(each)})"
            for each in view.overview.get("models") or ()
            if not each.get("default")
        ]
        words += [f"up {duration(metrics.get('uptime_s'))}", clean(view.where, 60)]
        return Line(" " + " · ".join(word for word in words if word), "dim").fit(self.width)

    def _body(self, view: View, height: int) -> list[Line]:
        """Lines above the requests, on a screen of ``height`` lines."""
        overview, width = view.overview, self.width
        lines: list[Line] = []
        if height > NO_MACHINE:
            lines += [self._about(view)]
            if not view.operator or height > NO_APPS:
                lines += [machine(overview, width)]
        if height >= 9:
            lines += latency(overview, width, 3 if height >= 40 else 1, view.operator)
            lines += [cap(overview, width)] if view.operator else []
        if height <= NO_APPS:
            return lines
        if view.operator:
            return lines + self._figures(view)
        return lines + apps(overview, width, 2 if height < 30 else 4 if height < 40 else 6)

    def _figures(self, view: View) -> list[Line]:
        """The operator's panels, side by side where that is wide."""
        overview, width = view.overview, self.width
        if width < 60:
            return operator.ticks(overview, view.tokens_now, width)
        count = 3 if width >= SIDE_BY_SIDE else 2
        each = width // count
        last = width - each * (count - 1)
        blocks = [operator.ticks(overview, view.tokens_now, each - 1)]
        blocks.append(operator.memory(overview, last if count == 2 else each - 1))
        if count == 3:
            blocks.append(operator.efficiency(overview, last))
        return [_beside(row) for row in zip(*blocks, strict=True)]

    def _news(self, overview: Mapping[str, Any]) -> list[Line]:
        """The last errors and the log: one line, or panels, side by side where that is wide."""
        if self.height <= NO_NEWS:
            return []
        if self.height < 30:
            return [news.newest(overview, self.width)]
        rows = 3 if self.height < 40 else 6
        if self.width < SIDE_BY_SIDE:
            errors, log = (3, 3) if rows == 3 else (5, 4)
            return [
                *news.mishaps(overview, self.width, errors),
                *news.log(overview, self.width, log),
            ]
        half = self.width // 2
        left = news.mishaps(overview, half, rows)
        right = news.log(overview, self.width - half, rows)
        return [a.extend(b) for a, b in zip(left, right, strict=True)]

    def _footer(self, view: View) -> Line:
        if view.typing:
            return Line(f" /{clean(view.filter, 60)}█  Enter keeps it, Esc ends it", "bold")
        if view.message:
            return Line(f" {clean(view.message, 300)}", "warn" if view.armed else "bold")
        if not view.keys:
            return Line(" Ctrl-C leaves", "dim")
        return key_line(self.width)


def _beside(parts: tuple[Line, ...]) -> Line:
    line = Line()
    for part in parts:
        line.extend(part).add(" ")
    return line


def _state(model: Mapping[str, Any]) -> str:
    """State of a model beside the default one, with how far a load is."""
    state, progress = model.get("state") or "-", model.get("progress")
    return f"{state} {progress:.0%}" if state == "loading" and progress else clean(state, 12)
