"""Shares of the tokens by app."""

from __future__ import annotations

from umaserve.dashboard.canvas.line import (
    MISSING,
    Column,
    Line,
    Values,
    bar,
    clean,
    column,
    ms,
    number,
    percent,
    rule,
    spaced,
)

LABEL = 13  # cells of what stands before a gauge
NUMBER = 7


# behind an app's gauge, from left to right; the name stands before them
APP_FIGURES = (
    Column("share", 6, lambda app: percent(app.get("share")), 0),
    Column("now", 5, lambda app: number(app.get("active")), 70),
    Column("p95", NUMBER, lambda app: ms(app.get("p95_ms")), 30),
    Column("cached", NUMBER, lambda app: percent(app.get("cached")), 40),
    Column("lane", 13, lambda app: f" {clean(app.get('lane') or MISSING)}", 55, True),
    Column("why", 28, lambda app: f" {clean(app.get('lane_reason') or '')}", 120, True),
)


def apps(overview: Values, width: int, rows: int) -> list[Line]:
    """Return each app's share of the tokens, in up to ``rows`` lines after a title.

    Empty where no app sent a request for a minute.
    """
    known = (overview.get("metrics") or {}).get("apps") or {}
    there = [
        (name, app)
        for name, app in known.items()
        if app.get("active") or app.get("share") or app.get("p95_ms") is not None
    ]
    if not there:
        return []
    there.sort(key=lambda item: -(item[1].get("share") or 0.0))
    figures = [figure for figure in APP_FIGURES if width >= figure.least]
    room = max(width - LABEL - sum(figure.width for figure in figures), 0)
    shown = there[:rows]
    title = "apps" if len(shown) == len(there) else f"apps: {len(shown)} of {len(there)}"
    head = rule(title, LABEL + room)
    for figure in figures:
        words = f" {figure.title}" if figure.left else figure.title
        head.add(spaced(words, figure.width, figure.left), "dim")
    lines = [head.pad(width)]
    for name, app in shown:
        line = Line(column(f" {clean(name, 40)}", LABEL, left=True), "bold")
        line.extend(bar(app.get("share"), room))
        for figure in figures:
            line.add(spaced(figure.cell(app), figure.width, figure.left))
        lines.append(line.pad(width))
    return lines
