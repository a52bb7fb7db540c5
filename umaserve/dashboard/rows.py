"""Requests to list, in order: those that run or wait, then the last that ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from umaserve.dashboard.canvas.line import clean

Row = Mapping[str, Any]

LISTED = 10  # requests that ended fill the list up to so many
ENDS = {  # `reason` of an end in a word
    "stop": "done", "length": "at limit", "tool_calls": "tool call", "cancel": "cancelled",
    "error": "failed",
}  # fmt: skip
_SEARCHED = ("id", "app", "lane", "lane_reason", "state", "key", "session")


def _figure(name: str) -> Callable[[Row], Any]:
    return lambda row: -(row.get(name) or 0.0)


def _words(name: str) -> Callable[[Row], Any]:
    return lambda row: str(row.get(name) or "")


# names as the title has them; the first keeps the order of arrival
SORTS: dict[str, Callable[[Row], Any] | None] = {
    "arrival": None,
    "app": _words("app"),
    "tokens": _figure("tokens"),
    "prompt": _figure("prompt_tokens"),
    "slowest": _figure("p95_ms"),
    "latest first token": _figure("ttft_ms"),
}


def listed(
    overview: Mapping[str, Any], names: Mapping[int, str], wanted: str, by: str
) -> list[Row]:
    """Rows that contain ``wanted``, sorted by a name of `SORTS`.

    ``names`` has ids of requests by serial: the daemon tells none of a request that has ended.
    """
    live = list(overview.get("sessions") or [])
    there = {row.get("serial") for row in live}
    recent = overview.get("recent") or []
    ended = [_ended(row, names) for row in reversed(recent) if row.get("serial") not in there]
    rows = live + ended[: max(LISTED - len(live), 0)]
    if wanted:
        rows = [row for row in rows if _has(row, wanted.lower())]
    key = SORTS[by]
    return rows if key is None else sorted(rows, key=key)


def is_ended(row: Row) -> bool:
    return row.get("reason") is not None


def _ended(row: Row, names: Mapping[int, str]) -> Row:
    """A row of ``recent`` with the fields of one that runs."""
    first, total, tokens = row.get("ttft_ms"), row.get("total_ms"), row.get("completion_tokens")
    span_ms = total - first if total is not None and first is not None else 0.0
    serial = row.get("serial")
    return {
        **row,
        "id": names.get(serial, f"#{serial}") if serial is not None else None,
        "state": ENDS.get(str(row.get("reason")), clean(row.get("reason"), 12)),
        "tokens": tokens,
        "tok_s": 1e3 * (tokens - 1) / span_ms if tokens and tokens > 1 and span_ms > 0 else None,
        "p95_ms": row.get("tbt_p95_ms"),
    }


def _has(row: Row, wanted: str) -> bool:
    return any(wanted in str(row.get(name) or "").lower() for name in _SEARCHED)


def same(rows: Sequence[Row], serial: int | None) -> int | None:
    """Index of the row with this number."""
    if serial is None:
        return None
    return next((n for n, row in enumerate(rows) if row.get("serial") == serial), None)
