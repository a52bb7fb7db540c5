"""The files that a daemon writes while it runs: the scorecard's CSV and the ticks' JSON lines."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from umaserve.config import Config
from umaserve.server.figures.record_file import RecordFile
from umaserve.server.figures.scorecard import Scorecard
from umaserve.wire.header import TickRow

SAMPLE_S = 5.0  # the scorecard's own window wants to be filled that often

# what the bits of a tick's flags say
FLAGS = ((1, "guard_active"), (2, "error_budget_spent"), (4, "prompt_aside"))

_encode = msgspec.json.Encoder().encode


def open_records(
    config: Config, scorecard: Scorecard, log: Callable[..., None]
) -> tuple[RecordFile | None, RecordFile | None]:
    """The scorecard's file and the trace, where the settings name them.

    Raises ``RecordError`` where a folder does not exist.
    """
    limits: Any = {"max_bytes": config.metrics_max_bytes, "keep": config.metrics_keep}
    table = trace = None
    if config.scorecard:
        header = _line([name for name, _ in csv_row(scorecard.read(), 0.0)])
        table = RecordFile(config.scorecard, log, header=header, **limits)
    if config.trace:
        trace = RecordFile(config.trace, log, **limits)
    return table, trace


def csv_row(numbers: dict[str, Any], unix_s: float) -> list[tuple[str, Any]]:
    """Names and values of one row: ``time`` (Unix seconds), then the scorecard's.

    Histograms and the figures of single programs are left out.  Errors are summed over their codes.
    Yes and no are 1 and 0, and what has no value is empty.
    """
    row: list[tuple[str, Any]] = [("time", round(unix_s, 3))]
    for name, value in numbers.items():
        if name == "errors_total":
            value = sum(value.values())
        elif isinstance(value, dict):
            continue
        elif isinstance(value, bool):
            value = int(value)
        row.append((name, value))
    return row


def _line(values: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


async def sample(scorecard: Scorecard, file: RecordFile | None, interval_s: float) -> None:
    """Read the scorecard, so that its window fills; put one row an interval into ``file``."""
    now_s = trio.current_time()
    due = now_s + interval_s
    while True:
        await trio.sleep_until(min(due, now_s + SAMPLE_S) if file else now_s + SAMPLE_S)
        now_s = trio.current_time()
        numbers = scorecard.read()
        if file is not None and now_s >= due:
            file.put(_line([value for _, value in csv_row(numbers, time.time())]))
            due = max(due + interval_s, now_s)


def tick_line(pid: int, number: int, row: TickRow) -> bytes:
    """Encode a tick as a line of JSON: the ``number``-th row of the tick ring of engine ``pid``.

    Times are in milliseconds, except ``end_s``: seconds of the monotonic clock.  ``null``: the cost
    model, the baseline or the guard gave no value.
    """
    flags = int(row.flags)
    return _encode(
        {
            "tick": number,
            "engine": pid,
            "end_s": round(row.end_s, 6),
            "wall_ms": round(row.wall_ms, 4),
            "decode_ms": round(row.decode_ms, 4),
            "sample_ms": round(row.sample_ms, 4),
            "decode_rows": int(row.decode_rows),
            "interactive_rows": int(row.interactive_rows),
            "drafted_tokens": int(row.drafted),
            "accepted_tokens": int(row.accepted),
            "prefill_tokens": int(row.prefill_tokens),
            "kv_cells": int(row.cells),
            "predicted_ms": round(row.predicted_ms, 4) or None,
            "baseline_ms": round(row.baseline_ms, 4) or None,
            "allowed_ms": round(row.allowed_ms, 4) or None,
            "slice_ms": round(row.slice_ms, 4) or None,
            "bmt_mb": round(row.bmt_mb, 4),
            "flags": [name for bit, name in FLAGS if flags & bit],
        }
    ) + b"\n"  # fmt: skip
