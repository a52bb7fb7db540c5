"""From a ``View`` to lines: pure, no terminal and no clock in here.

The layout is by hand: rich's tables and panels would cost some twenty milliseconds a frame, in the
process that also passes the tokens on.

Long: a short function for each part of the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from umaserve.dashboard import panels
from umaserve.dashboard.line import (
    MISSING,
    Line,
    clean,
    column,
    duration,
    ms,
    number,
    rule,
)
from umaserve.dashboard.view import View

Session = Mapping[str, Any]

SIDE_BY_SIDE = 150  # columns from which there is more beside each other
LATENCY_ONLY = 17  # lines up to which there are no panels of ticks and memory

# the longest that there is room for
KEYS = (
    " ↑↓ select  p promote  d demote  c cancel  space pause  ? help  q quit",
    " ↑↓  p  d  c cancel  space  ? help  q quit",
    " ? help  q quit",
)
# what `?` shows: keys, then words of the screen that need one
KEY_HELP = (
    ("↑ ↓ or k j", "select a session; also page up and down, home, end"),
    ("p, d", "promote it to the interactive lane, demote it to background"),
    ("c or x, twice", 'cancel it; its client gets reason "cancel"'),
    ("space, Ctrl-L", "hold the screen still or go on; draw everything anew"),
    ("q", "leave; where the daemon draws this itself, twice: stop it"),
)
WORD_HELP = (
    ("first, p95", "time to the first token: median, 95th percentile, ms"),
    ("held", "p95 / cap: the cap is kept; guard: ticks that left prompts out"),
    ("at cap", "tokens a second, counting only seconds that kept the cap"),
    ("late", "ticks that took longer than the tick budget"),
    ("ΣBMT", "estimated GB that ticks move a second, of what they may move"),
    ("churn", "memory fetched from disk for each token; 0 is best"),
)
HELP_LABEL = 13  # cells of what is explained


class _Column:
    """``least`` is the terminal width from which it is shown."""

    def __init__(
        self,
        title: str,
        width: int,
        cell: Callable[[Session], str],
        least: int = 0,
        left: bool = False,
    ) -> None:
        self.title, self.width, self.cell, self.least, self.left = title, width, cell, least, left


def _words(name: str, limit: int = 60) -> Callable[[Session], str]:
    return lambda session: clean(session.get(name) or MISSING, limit)


def _state(session: Session) -> str:
    state, prompt = session.get("state"), session.get("prompt_tokens")
    if state == "prefill" and prompt:
        return f"prefill {min((session.get('kv_cells') or 0) / prompt, 1.0):.0%}"
    return clean(state or MISSING)


COLUMNS = (
    _Column("id", 11, _words("id"), left=True),
    _Column("app", 9, _words("app"), 45, left=True),
    _Column("lane", 11, _words("lane"), 55, left=True),
    _Column("state", 12, _state, left=True),
    _Column("tokens", 7, lambda s: number(s.get("tokens"))),
    _Column("tok/s", 7, lambda s: number(s.get("tok_s")), 60),
    _Column("p95", 6, lambda s: ms(s.get("p95_ms")), 67),
    _Column("cells", 6, lambda s: number(s.get("kv_cells")), 74),
    _Column("prompt", 7, lambda s: number(s.get("prompt_tokens")), 100),
    _Column("first", 8, lambda s: ms(s.get("ttft_ms")), 100),
    _Column("age", 9, lambda s: duration(s.get("age_s")), 110),
    _Column("conn", 6, _words("conn"), 130, left=True),
    _Column("why", 27, _words("lane_reason"), 140, left=True),
)


def loading(overview: Mapping[str, Any]) -> str:
    """How far it is; a stage that is at its end, or has none, is only named."""
    share, stage = overview.get("progress") or 0.0, clean(overview.get("stage") or "", 40)
    if stage and share >= 1.0:
        return f"loading: {stage}"
    return f"loading{f' {stage}' if stage else ''} {share:.0%}"


def no_model(overview: Mapping[str, Any]) -> str:
    """Why there is none, if it is not for good."""
    next_try = overview.get("next_try")
    if not next_try:
        return "no model loaded"
    return f"no model: tried again in {duration(next_try.get('in_s'))}"


def summary(overview: Mapping[str, Any]) -> str:
    """One line for terminals that cannot draw, and for logs."""
    metrics = overview.get("metrics") or {}
    if overview.get("state") == "loading":
        return loading(overview)
    queued = (metrics.get("queued_interactive") or 0) + (metrics.get("queued_background") or 0)
    over = metrics.get("p95_over_baseline")
    held = f" ({number(over, 2)} × baseline)" if over is not None else ""
    error = (overview.get("errors") or [{}])[-1]
    last = ""
    if error.get("age_s", panels.FAINT_S) < panels.FAINT_S:
        last = f", last error {clean(error.get('time'), 8)} {clean(error.get('code'), 13)}"
    return (
        f"{clean(metrics.get('model') or no_model(overview).removesuffix(' loaded'))}: "
        f"{number(metrics.get('tokens_per_s'))} tok/s, "
        f"{number(metrics.get('active_sessions'))} active, {queued} queued, "
        f"p95 {ms(metrics.get('p95_ms'))} ms{held}, "
        f"RSS {number(metrics.get('rss_gb'), 2)} GB{last}"
    )


class Screen:
    """``lines`` for a terminal of ``width`` x ``height`` cells."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width = max(width, 1)
        self.height = max(height, 1)

    def lines(self, view: View) -> list[Line]:
        """At most ``height`` lines of exactly ``width`` cells.  Whatever is missing is ``-``."""
        if view.note:
            rows = [self._header(view), Line()]
            rows += [Line(f" {clean(row, 400)}") for row in view.note.split("\n")]
            return [line.pad(self.width) for line in rows[: self.height]]
        body = self._body(view, self.height)
        footer = [self._footer(view)] if self.height > 2 else []
        news = self._news(view.overview)
        room = self.height - 1 - len(footer)
        if view.help:
            sessions = self._help(room)
            # what there is no room for beside the help goes, the newest error first
            if len(body) + len(news) + len(sessions) > room:
                news = []
            for height in (LATENCY_ONLY, 0):
                if len(body) + len(sessions) > room:
                    body = self._body(view, height)
        room -= len(body) + len(news)
        if not view.help:
            sessions = self._sessions(view, room)
        sessions = sessions[: max(room, 0)]
        sessions += [Line()] * (room - len(sessions))
        lines = [self._header(view), *body, *sessions, *news, *footer][: self.height]
        return [line.pad(self.width) for line in lines]

    def _news(self, overview: Mapping[str, Any]) -> list[Line]:
        """The last errors and the log: one line, or panels, side by side where that is wide."""
        if self.height < 16:
            return []
        if self.height < 30:
            return [panels.newest(overview, self.width)]
        rows = 3 if self.height < 40 else 6
        if self.width < SIDE_BY_SIDE:
            errors, log = (3, 3) if rows == 3 else (5, 4)
            return [
                *panels.mishaps(overview, self.width, errors),
                *panels.log(overview, self.width, log),
            ]
        half = self.width // 2
        left = panels.mishaps(overview, half, rows)
        right = panels.log(overview, self.width - half, rows)
        return [a.extend(b) for a, b in zip(left, right, strict=True)]

    def _header(self, view: View) -> Line:
        metrics = view.overview.get("metrics") or {}
        state = view.overview.get("state")
        if view.note:
            words = ["UMA Serve", "no daemon", clean(view.where, 60)]
            return Line(column(" " + " · ".join(words), self.width, left=True), "head")
        if state == "loading":
            model = loading(view.overview)
        else:
            model = clean(metrics.get("model") or "", 40) or no_model(view.overview)
        words = ["UMA Serve", model, clean(metrics.get("backend") or MISSING, 12)]
        words += [f"up {duration(metrics.get('uptime_s'))}", clean(view.where, 60)]
        text = " " + " · ".join(word for word in words if word)
        mark = " PAUSED " if view.paused else " stopping " if state == "stopping" else ""
        return Line(column(text, max(self.width - len(mark), 0), left=True), "head").add(
            mark, "bold"
        )

    def _body(self, view: View, height: int) -> list[Line]:
        """What a screen of that height has above the sessions."""
        overview, width = view.overview, self.width
        lines: list[Line] = []
        if height >= 9:
            lines += panels.latency(overview, width, 3 if height >= 40 else 1)
        if height <= LATENCY_ONLY:
            return lines
        if width < 60:
            if height >= 24:
                lines += panels.ticks(overview, view.tokens_now, width)
            return lines + panels.apps(overview, width, _apps_shown(height))
        count = 3 if width >= SIDE_BY_SIDE else 2
        each = width // count
        last = width - each * (count - 1)
        blocks = [panels.ticks(overview, view.tokens_now, each)]
        blocks.append(panels.memory(overview, last if count == 2 else each))
        if count == 3:
            blocks.append(panels.efficiency(overview, last))
        for row in zip(*blocks, strict=True):
            line = Line()
            for part in row:
                line.extend(part)
            lines.append(line)
        return lines + panels.apps(overview, width, _apps_shown(height))

    def _sessions(self, view: View, room: int) -> list[Line]:
        metrics, sessions = view.overview.get("metrics") or {}, view.sessions
        title = Line(f"sessions: {number(metrics.get('active_sessions'))} active").pieces(
            self.width - 3,
            f"queued {number(metrics.get('queued_interactive'))} interactive, "
            f"{number(metrics.get('queued_background'))} background",
            f"{number(metrics.get('requests_total'))} requests so far",
        )
        chosen = [s for s in sessions if view.selected is not None and _is(s, view)]
        text = _about(chosen[0], self.width - 3) if chosen else title.plain
        lines = [rule(text, self.width)]
        if not sessions:
            return [*lines, Line(" no request is running", "dim")]
        columns = [c for c in COLUMNS if self.width >= c.least]
        widths = [c.width for c in columns]
        spare = self.width - 1 - sum(widths) - len(widths)
        widths[0] += spare if len(widths) < 2 else spare - spare // 2
        if len(widths) > 1:
            widths[1] += spare // 2
        cells = [
            column(c.title, max(width, 1), c.left) for c, width in zip(columns, widths, strict=True)
        ]
        lines.append(Line("  " + " ".join(cells), "dim"))
        shown = max(room - 2, 1)
        first = _first_shown(view.index, len(sessions), shown)
        more = len(sessions) - first - shown
        if more > 0 and shown > 1:
            shown -= 1
            first = _first_shown(view.index, len(sessions), shown)
            more = len(sessions) - first - shown
        for session in sessions[first : first + shown]:
            lines.append(self._session(session, columns, widths, view))
        if more > 0:
            lines.append(Line(f"  and {more} more", "dim"))
        return lines

    def _session(
        self, session: Session, columns: Sequence[_Column], widths: Sequence[int], view: View
    ) -> Line:
        chosen = view.selected is not None and _is(session, view)
        cells = [
            column(c.cell(session), max(width, 1), c.left)
            for c, width in zip(columns, widths, strict=True)
        ]
        faint = session.get("state") in ("queued", "parked", "ending")
        style = "select" if chosen else "dim" if faint else ""
        return Line(("▸ " if chosen else "  ") + " ".join(cells), style)

    def _help(self, room: int) -> list[Line]:
        """A line each; on a narrow screen several, or one that is cut off where that is low too."""
        entries = (*KEY_HELP, *WORD_HELP)
        rows = [f"{column(what, HELP_LABEL, left=True)}  {text}" for what, text in entries]
        if max(map(len, rows)) + 2 > self.width:
            rows = [f"{what}: {text}" for what, text in entries]
            width = max(self.width - 2, 4)
            parts = [part for row in rows for part in wrap(row, width, subsequent_indent="   ")]
            rows = parts if len(parts) < room else rows
        title = rule("help (? or Esc closes it)", self.width)
        return [title, *(Line(f"  {row}").fit(self.width) for row in rows)]

    def _footer(self, view: View) -> Line:
        if view.message:
            return Line(f" {clean(view.message, 300)}", "warn" if view.armed else "bold")
        if not view.keys:
            return Line(" Ctrl-C leaves", "dim")
        return Line(next((k for k in KEYS if len(k) <= self.width), KEYS[-1]), "dim")


def _is(session: Session, view: View) -> bool:
    return bool(session.get("serial") == view.selected)


def _about(session: Session, width: int) -> str:
    """The session that is selected: its lane, and why."""
    app = clean(session.get("app") or "unknown", 24)
    line = Line(f"{clean(session.get('id'), 40)} of {app}")
    lane, why = (clean(session.get(name) or MISSING) for name in ("lane", "lane_reason"))
    return line.pieces(width, f"{lane}: {why}").plain


def _apps_shown(height: int) -> int:
    """How many apps there is room for on a screen that high."""
    return 2 if height < 24 else 3 if height < 30 else 4 if height < 40 else 6


def _first_shown(index: int, count: int, shown: int) -> int:
    """Index of the first row, so that row ``index`` is in sight."""
    return min(max(index - shown + 1, 0), max(count - shown, 0))
