"""Public figures of each request: one dict per request, for ``info`` and for dashboards."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from umaserve.metrics.window import quantile
from umaserve.server.requests.life import Stage
from umaserve.server.requests.request import LANE_NAMES, Request
from umaserve.server.requests.sessions import Sessions
from umaserve.wire import table as t

NEWEST = 256  # times between tokens that a row's rate and p95 are taken over


def session_rows(sessions: Sessions) -> list[dict[str, Any]]:
    """Return a row for every request between its arrival and its last event, by arrival.

    ``serial`` is the daemon's own number of the request, ``conn`` its connection, ``app`` the
    program that sent it.  ``state`` is queued, prefill, decode, parked (the request gave its KV
    cells to others and waits) or ending.  ``tok_s`` and ``p95_ms`` are over the request's
    ``NEWEST`` times between tokens, and ``None`` before the first such time.  A call takes about
    25 us for each request that decodes.
    """
    now_ns = time.monotonic_ns()
    return [_row(request, now_ns) for request in sessions.live.values()]


def _row(request: Request, now_ns: int) -> dict[str, Any]:
    times = request.token_ns
    rate = p95 = None
    newest = times[-NEWEST - 1 :]
    if len(newest) > 1:
        p95 = quantile(np.diff(np.array(newest, np.int64)), 0.95)
        span_ns = newest[-1] - newest[0]
        rate = 1e9 * (len(newest) - 1) / span_ns if span_ns else None
    lane, reason = request.lane_now()
    row_state, cells, is_parked = _in_engine(request)
    state = request.state()
    if row_state == t.WAITING and state in ("prefill", "decode"):
        state = "parked" if is_parked else "queued"
    return {
        "serial": request.serial,
        "id": request.id,
        "conn": request.sink.label,
        "app": request.app,
        "key": request.message.key,
        "session": request.message.session,
        "cache_scope": request.message.cache_scope,
        "lane": LANE_NAMES[lane],
        "lane_reason": reason,
        "state": state,
        "prompt_tokens": len(request.prompt_ids or ()),
        "tokens": len(request.tokens),
        "tok_s": None if rate is None else round(rate, 1),
        "p95_ms": None if p95 is None else round(p95 / 1e6, 3),
        "ttft_ms": round((times[0] - request.arrived_ns) / 1e6, 3) if times else None,
        "kv_cells": cells,
        "age_s": round((now_ns - request.arrived_ns) / 1e9, 3),
    }


def _in_engine(request: Request) -> tuple[int, int, bool]:
    """State of the request's row in the session table, its KV cells, and whether it is parked.

    FREE, 0 and False without a row.
    """
    engine, slot = request.engine, request.slot
    if engine is None or request.stage is not Stage.RUNNING:
        return t.FREE, 0, False
    table = engine.table
    if table.serial[slot] != request.serial:
        return t.FREE, 0, False
    cells = int(table.n_past[slot]) if table.seq[slot] >= 0 else 0
    return int(table.state[slot]), cells, table.is_parked(slot)
