"""Public figures of each program and of each model: ``apps`` and ``models`` of the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from umaserve.protocol import WITHOUT_KEY
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.life import Stage
from umaserve.server.requests.meters.apps import App, Apps
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import LANE_NAMES, Request
from umaserve.server.requests.service import Service


def app_rows(apps: Apps, live: Iterable[Request], now_s: float) -> dict[str, dict[str, Any]]:
    """Figures by name, the program that was there last first.

    ``live`` are the requests that did not end, in order of arrival.  ``active`` are a program's
    requests now, ``key`` the name of its API key.  ``share`` is its part of all tokens of the last
    seconds, those of requests and of their answers.  ``cached`` is the part of its prompt tokens
    that was in the cache.  ``None`` where there is no value.
    """
    active: Counter[App] = Counter()
    for request in live:
        app = request.figures
        if app is not None:
            active[app] += 1
            if request.stage is Stage.RUNNING:
                app.lane, app.reason = request.lane_now()
    known = apps.all()
    recent = [app.recent(now_s) for app in known]
    whole = sum(recent)
    return {
        name: {
            "key": app.key or None,
            "requests": app.requests,
            "active": active[app],
            "tokens": app.tokens,
            "share": _ratio(tokens, whole),
            "cached": _ratio(app.cached_tokens, app.prompt_tokens),
            "p95_ms": app.p95_ms(now_s),
            "lane": None if app.lane is None else LANE_NAMES[app.lane],
            "lane_reason": app.reason or None,
        }
        for name, app, tokens in zip(_names(known), known, recent, strict=True)
    }


def _names(apps: Iterable[App]) -> list[str]:
    """A name for each: its own, behind the name of its API key where that is another one."""
    found: dict[str, None] = {}
    for app in apps:
        named = app.key in ("", WITHOUT_KEY, app.name)
        name = app.name if named else f"{app.key}: {app.name}"
        while name in found:  # an app may call itself anything
            name += " (another)"
        found[name] = None
    return list(found)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def model_figures(
    services: Iterable[Service], meters: Meters, engines: list[EngineHandle], now_s: float
) -> dict[str, dict[str, Any]]:
    """Figures by the model's name, the default model first.

    Totals go on over the engines of a model.  ``None`` where there is no value.
    """
    return {
        each.label or "model": _of_model(each, meters, engines, now_s) for each in services
    }


def _of_model(
    service: Service, meters: Meters, engines: list[EngineHandle], now_s: float
) -> dict[str, Any]:
    own = [each for each in engines if each.service == service.number]
    counters, recent = meters.totals_of(service.number, own), meters.recent_of(service.number)
    engine = service.engine
    ready = engine.ready if engine is not None else None
    header = engine.table.header if engine is not None and ready is not None else None
    p95_ms, ttft_ms = (
        window.quantiles(now_s, (0.95,))[0] for window in (recent.gaps[0], recent.ttft[0])
    )
    return {
        "loaded": ready is not None,
        "requests": meters.requests_of[service.number],
        "active": sum(len(each.requests) for each in own),
        "waiting": len(service.room),
        "tokens": counters.decode_tokens,
        "prompt_tokens_computed": counters.prefill_tokens,
        "batch_calls": counters.ticks,
        "p95_ms": None if p95_ms is None else round(p95_ms, 4),
        "ttft_ms_p95": None if ttft_ms is None else round(ttft_ms, 4),
        "memory_bytes": ready.memory_bytes if ready is not None else 0,
        "kv_cells_used": header.cells_used if header is not None else None,
        "kv_cells_total": header.cells_total if header is not None else None,
    }
