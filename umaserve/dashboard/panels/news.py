"""The last errors, and the newest lines of the daemon's log."""

from __future__ import annotations

from umaserve.dashboard.canvas.line import Line, Values, clean, column, rule

WARNINGS = ("warn", "E_PROTO", "E_LIMIT", "E_IO")  # of the log and of clients; others are ours
FAINT_S = 60.0  # an error that old is not news


def mishap(entry: Values, faint_s: float | None = None) -> Line:
    """Return a line on an error: time, code, count, request, app and text.

    Dim when the error is older than ``faint_s``.
    """
    age, code = entry.get("age_s") or 0.0, clean(entry.get("code"), 13)
    at = clean(entry.get("time"), 8) if age < 86400 else f"{age // 86400:.0f} d ago"
    old = faint_s is not None and age > faint_s
    style = "dim" if old else "warn" if code.startswith(WARNINGS) else "bad"
    line = Line(f" {column(at, 8, left=True)} ", "dim").add(code, style)
    if (entry.get("count") or 1) > 1:
        line.add(f" ×{entry['count']}", style)
    names = [clean(entry.get(name) or "", 24) for name in ("request", "app")]
    who = " of ".join(name for name in names if name)
    text = clean(entry.get("text") or "", 300)
    return line.add(f" {who}:" if who else ":").add(f" {text}", "dim" if old else "")


def mishaps(overview: Values, width: int, rows: int) -> list[Line]:
    """The newest errors and warnings, the last at the bottom."""
    entries = overview.get("errors") or []
    lines = [mishap(entry) for entry in entries[-rows + 1 :]] or [Line(" none so far", "dim")]
    lines = [line.fit(width - 1) for line in lines]  # the next panel may begin at once
    return _panel([rule("last errors", width), *lines], width, rows)


def log(overview: Values, width: int, rows: int) -> list[Line]:
    """The newest lines of the daemon's log."""
    lines = [rule("log", width)]
    entries = overview.get("log") or []
    lines += [_log_line(entry).fit(width) for entry in entries[-rows + 1 :]]
    return _panel(lines, width, rows)


def _panel(lines: list[Line], width: int, rows: int) -> list[Line]:
    blank = [Line() for _ in range(rows - len(lines))]
    return [line.pad(width) for line in [*lines, *blank]]


def newest(overview: Values, width: int) -> Line:
    """Return a line of news: the last error, or else the last line of the log.

    While the daemon stops, the line is the last of the log, which says what the daemon waits for.
    """
    errors, entries = overview.get("errors") or [], overview.get("log") or []
    if errors and overview.get("state") != "stopping":
        return mishap(errors[-1], FAINT_S).fit(width)
    return _log_line(entries[-1]).fit(width) if entries else Line()


def _log_line(entry: Values) -> Line:
    level = entry.get("level", "")
    style = {"error": "bad", "warn": "warn"}.get(level, "dim")
    mark = f"{level}: " if style != "dim" else ""
    at, text = clean(entry.get("time", ""), 8), clean(entry.get("text", ""), 300)
    return Line(f" {at} ", "dim").add(mark + text, style)
