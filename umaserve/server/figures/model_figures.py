"""Public figures of each model: the ``models`` of the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.service import Service


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
