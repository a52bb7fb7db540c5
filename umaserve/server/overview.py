"""Everything that a dashboard shows, in one dict."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import umaserve
from umaserve.server.clients.served_by import ServedBy
from umaserve.server.figures.machine import MachineUse
from umaserve.server.figures.recent_gaps import RecentGaps
from umaserve.server.figures.session_rows import session_rows
from umaserve.server.supervision.model_rows import SHOWN, adapters_of, model_of, model_row, state_of
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

if TYPE_CHECKING:
    from umaserve.server.engines.handle import EngineHandle
    from umaserve.server.figures.scorecard import Scorecard
    from umaserve.server.requests.service import Service
    from umaserve.server.supervision.engine_set import EngineSet

TICK_SPAN_S = 1.0
LOG_LINES = 12
ERRORS = 12
ENDED = 10


class Watched(ServedBy, Protocol):
    """The daemon, as far as people are told of it."""

    models: EngineSet
    scorecard: Scorecard
    http: str


class Overview:
    """``read()`` gives the fields of a ``metrics`` event that was asked for with ``sessions``."""

    def __init__(self, daemon: Watched) -> None:
        self._daemon = daemon
        self._gaps, self._of = RecentGaps(), daemon.meters.recent
        self._machine = MachineUse()

    def read(self) -> dict[str, Any]:
        daemon = self._daemon
        engine = daemon.models.current
        next_try = daemon.models.default.next_try
        ready = engine is not None and engine.ready is not None
        if daemon.meters.recent is not self._of:  # another model serves
            self._gaps, self._of = RecentGaps(), daemon.meters.recent
        live = {
            serial: request
            for serial, request in daemon.sessions.live.items()
            if request.engine is None or not request.engine.replaced
        }
        return {
            "metrics": daemon.scorecard.read(),
            "state": state(daemon),
            "progress": None if engine is None or ready else round(engine.progress.fraction, 4),
            "stage": None if engine is None or ready else engine.progress.stage,
            "next_try": next_try.state() if next_try is not None else None,
            "models": [{name: each.get(name) for name in SHOWN} for each in models_of(daemon)],
            "sessions": session_rows(daemon.sessions),
            "recent": daemon.meters.recent_requests.read()[-ENDED:],
            "machine": self._machine.read(),
            "tbt_ms": self._gaps.read(live, time.monotonic_ns()),
            "ticks": {
                "budget_ms": daemon.config.tick_budget_ms,
                **(tick_summary(engine) if engine is not None and ready else {}),
            },
            "errors": daemon.meters.recent_errors.read()[-ERRORS:],
            "log": list(daemon.log.recent)[-LOG_LINES:],
        }


def state(daemon: Watched, service: Service | None = None) -> str:
    """Return the state of a model, or of the default model; or stopping."""
    if daemon.stopping:
        return "stopping"
    return state_of(service or daemon.models.default.service)


def info(daemon: Watched, name: str | None = None, *, template: bool = False) -> dict[str, Any]:
    """``model`` is that of this name, else the default; ``None`` while it is not loaded, with
    ``state`` saying what is going on.  ``models`` has all of them.
    ``template``: its ``template`` is the text of the chat template.
    ``next_try`` is when one that cannot be served now is tried again."""
    services = daemon.sessions.services
    service = services.named(name or "") or services.default
    next_try = daemon.models.all[service.number].next_try
    model = model_of(service.engine) if service.engine is not None else None
    ready = service.engine.ready if service.engine is not None else None
    if model is not None and (adapters := adapters_of(service)):
        model["adapters"] = adapters
    if template and model is not None and ready is not None:
        model["template"] = ready.chat_template
    config = daemon.config
    names = (
        "max_sessions", "max_queue", "idle_timeout_s", "max_unsent_bytes", "max_connections",
        "drain_s",
    )  # fmt: skip
    limits = {name: getattr(config, name) for name in names} | daemon.limits._asdict()
    return {
        "version": umaserve.__version__,
        "pid": os.getpid(),
        "socket": config.socket,
        "http": daemon.http or None,
        "state": state(daemon, service),
        "model": model,
        "models": models_of(daemon),
        "next_try": next_try.state() if next_try is not None else None,
        "limits": limits,
        "sessions": session_rows(daemon.sessions),
        "recent": daemon.meters.recent_requests.read(),
    }


def models_of(daemon: Watched) -> list[dict[str, Any]]:
    """A row for each model, the default one first."""
    live = list(daemon.sessions.live.values())
    return [
        model_row(each.service, each.config.model, each.settings.aliases, live, daemon.meters)
        for each in daemon.models.all
    ]


def tick_summary(engine: EngineHandle) -> dict[str, Any]:
    """The ticks of the last second, from the ring that the engine writes: how many, and the mean
    and the longest in ms.  Also the mean of what the guard allowed (``None``: nobody interactive
    decoded), and how many decoding rows and prompt tokens they had."""
    table = engine.table
    end = table.header.tick_ring_at
    loads_first()
    rows = table.ticks[np.arange(max(0, end - t.TICK_RING), end) % t.TICK_RING]
    rows = rows[rows["end_s"] > time.monotonic() - TICK_SPAN_S]
    if not len(rows):
        return {"count": 0}
    wall, allowed = rows["wall_ms"], rows["allowed_ms"]
    limited = allowed[allowed > 0]
    return {
        "count": len(rows),
        "mean_ms": round(float(wall.mean()), 3),
        "longest_ms": round(float(wall.max()), 3),
        "allowed_ms": round(float(limited.mean()), 3) if len(limited) else None,
        "decode_rows": int(rows["decode_rows"].sum()),
        "prefill_tokens": int(rows["prefill_tokens"].sum()),
    }
