"""The list of requests; details of one of them, or models to choose from, take its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from umaserve.dashboard.canvas.line import (
    MISSING,
    Column,
    Line,
    clean,
    column,
    duration,
    ms,
    number,
    rule,
)
from umaserve.dashboard.panels.sentence import ago
from umaserve.dashboard.rows import SORTS, Row, is_ended
from umaserve.dashboard.view import View


def _words(name: str, limit: int = 60) -> Callable[[Row], str]:
    return lambda row: clean(row.get(name) or MISSING, limit)


def _state(row: Row) -> str:
    state, prompt = row.get("state"), row.get("prompt_tokens")
    if state == "prefill" and prompt and not is_ended(row):
        return f"prefill {min((row.get('kv_cells') or 0) / prompt, 1.0):.0%}"
    return clean(state or MISSING)


def _age(row: Row) -> str:
    """Age of a request, or the time since its end."""
    return f"{ago(row.get('age_s'))} ago" if is_ended(row) else duration(row.get("age_s"))


COLUMNS = (
    Column("id", 11, _words("id"), left=True),
    Column("app", 9, _words("app"), 45, left=True),
    Column("lane", 11, _words("lane"), 55, left=True),
    Column("state", 12, _state, left=True),
    Column("tokens", 7, lambda row: number(row.get("tokens"))),
    Column("tok/s", 7, lambda row: number(row.get("tok_s")), 60),
    Column("p95", 6, lambda row: ms(row.get("p95_ms")), 67),
    Column("age", 10, _age, 78),
    Column("prompt", 7, lambda row: number(row.get("prompt_tokens")), 100),
    Column("first", 8, lambda row: ms(row.get("ttft_ms")), 100),
    Column("cells", 7, lambda row: number(row.get("kv_cells")), 110),
    Column("conn", 6, _words("conn"), 130, left=True),
    Column("why", 27, _words("lane_reason"), 140, left=True),
)


def requests(view: View, width: int, room: int) -> list[Line]:
    """The list in ``room`` lines; the selected request is in sight."""
    rows = view.rows
    lines = [rule(_title(view, rows, width - 3), width)]
    if not rows:
        none = "no request matches the filter (Esc ends it)" if view.filter else "nobody asks"
        return [*lines, Line(f" {none}", "dim")]
    columns = [c for c in COLUMNS if width >= c.least]
    cells_of = widths(columns, width)
    cells = [column(c.title, n, c.left) for c, n in zip(columns, cells_of, strict=True)]
    lines.append(Line("  " + " ".join(cells), "dim"))
    shown = max(room - 2, 1)
    first = _first_shown(view.index, len(rows), shown)
    more = len(rows) - first - shown
    if more > 0 and shown > 1:
        shown -= 1
        first = _first_shown(view.index, len(rows), shown)
        more = len(rows) - first - shown
    for row in rows[first : first + shown]:
        cells = [column(c.cell(row), n, c.left) for c, n in zip(columns, cells_of, strict=True)]
        lines.append(_styled(row, " ".join(cells), row.get("serial") == view.selected))
    if more > 0:
        lines.append(Line(f"  and {more} more", "dim"))
    return lines


def _styled(row: Row, text: str, chosen: bool) -> Line:
    faint = is_ended(row) or row.get("state") in ("queued", "parked", "ending")
    style = "select" if chosen else "dim" if faint else ""
    return Line(("▸ " if chosen else "  ") + text, style)


def widths(columns: Sequence[Column], width: int) -> list[int]:
    """Widths of columns with a blank between them; spare room goes to the first two columns."""
    cells = [c.width for c in columns]
    spare = width - 1 - sum(cells) - len(cells)
    cells[0] += spare if len(cells) < 2 else spare - spare // 2
    if len(cells) > 1:
        cells[1] += spare // 2
    return [max(n, 1) for n in cells]


def _title(view: View, rows: Sequence[Row], width: int) -> str:
    """Counts; of the selected request, its lane and why."""
    metrics = view.overview.get("metrics") or {}
    order = [] if view.sort == next(iter(SORTS)) else [f"by {view.sort}"]
    row = next((row for row in rows if row.get("serial") == view.selected), None)
    if row is not None and view.selected is not None:
        app = clean(row.get("app") or "unknown", 24)
        line = Line(f"{clean(row.get('id'), 40)} of {app}")
        lane, why = (clean(row.get(name) or MISSING) for name in ("lane", "lane_reason"))
        return line.pieces(width, f"{lane}: {why}").plain
    if view.filter or view.typing:
        line = Line(f"requests with “{clean(view.filter, 40)}”: {len(rows)}")
        return line.pieces(width, *order).plain
    queued = (metrics.get("queued_interactive") or 0) + (metrics.get("queued_background") or 0)
    line = Line(f"requests: {number(metrics.get('active_sessions'))} now")
    so_far = f"{number(metrics.get('requests_total'))} so far"
    return line.pieces(width, *order, f"{queued} queued", so_far).plain


def details(row: Row, width: int) -> list[Line]:
    """All that is known of one request, a line each."""
    cached, drafted = row.get("cached_tokens"), row.get("drafted_tokens")
    known = "" if cached is None else f", {number(cached)} of them known"
    drafts = f", {number(row.get('accepted_tokens'))} of {number(drafted)} drafts right"
    end = f", ended {ago(row.get('age_s'))} ago" if is_ended(row) else ""
    total = row.get("total_ms")
    took = f"{ms(total)} ms" if total is not None else f"{duration(row.get('age_s'))} so far"
    wait = row.get("queue_ms")
    of_it = "" if wait is None else f", {ms(wait)} of them before it began"
    reused = f" · session {clean(row.get('session'), 40)}" if row.get("session") else ""
    key = f" · key {clean(row.get('key'), 40)}" if row.get("key") else ""
    entries = (
        ("app", f"{clean(row.get('app') or MISSING)}{key}{reused}"),
        ("lane", ": ".join(clean(row.get(name) or MISSING) for name in ("lane", "lane_reason"))),
        ("state", f"{_state(row)}{end}"),
        ("prompt", f"{_tokens(row.get('prompt_tokens'))}{known}"),
        ("answer", f"{_tokens(row.get('tokens'))}, {number(row.get('tok_s'))} a second"
                   f"{drafts if drafted else ''}"),
        ("first token", f"after {ms(row.get('ttft_ms'))} ms{of_it}"),
        ("between", f"95 of 100 tokens came within {ms(row.get('p95_ms'))} ms"),
        ("took", took),
        ("number", f"{number(row.get('serial'))} · connection {clean(row.get('conn') or MISSING)}"
                   f" · {number(row.get('kv_cells'))} KV cells"),
    )  # fmt: skip
    name = clean(row.get("id"), 60)
    return [
        rule(f"{name} (Enter or Esc closes it)", width),
        *(Line(f" {column(what, 12, left=True)} ", "bold").add(text).fit(width)
          for what, text in entries),
    ]  # fmt: skip


def _tokens(count: Any) -> str:
    return f"{number(count)} token{'s' * (count != 1)}"


def models(view: View, width: int, room: int) -> list[Line]:
    """Models of this machine, to load one."""
    known = view.models or []
    lines = [rule("load which model? (Enter loads it, Esc does not)", width)]
    shown = max(room - 1, 1)
    first = _first_shown(view.model_index, len(known), shown)
    for n, (name, path) in enumerate(known[first : first + shown], first):
        chosen = n == view.model_index
        text = f"{'▸' if chosen else ' '} {clean(name, 120)}"
        line = Line(text, "select" if chosen else "")
        if clean(path, 400) != clean(name, 120):
            line.add(f"  {clean(path, 400)}", "dim")
        lines.append(line.fit(width))
    return lines


def _first_shown(index: int, count: int, shown: int) -> int:
    """Index of the first row, so that row ``index`` is in sight."""
    return min(max(index - shown + 1, 0), max(count - shown, 0))
