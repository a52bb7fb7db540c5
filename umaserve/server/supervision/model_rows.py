"""The models that are served, as rows for people and for the gateway."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from umaserve.chat import plain_turns
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request
from umaserve.server.requests.service import DEFAULT, Service
from umaserve.system.process_stats import process_stats

# as the engine tells them
SAME_IN_READY = (
    "description", "architecture", "backend", "device", "library_version", "n_vocab", "n_ctx",
    "n_ctx_train", "n_seq", "n_batch", "n_ubatch", "n_threads", "n_params", "n_embd", "pooling",
    "generates", "model_bytes", "kv_bytes", "gap", "bos", "eos", "off", "why_no_drafts",
    "draft_model", "heads",
)  # fmt: skip


# of a row, for a screen
SHOWN = (
    "id", "default", "role", "state", "stage", "progress", "memory_bytes", "rss_gb", "p95_ms",
    "users",
)  # fmt: skip


def model_of(engine: EngineHandle) -> dict[str, Any]:
    """The fields of a model that is loaded, or is being loaded, by its engine."""
    ready = engine.ready
    model: dict[str, Any] = {"path": engine.start.model_path, "engine_pid": engine.pid}
    if ready is None:
        return model | {"progress": round(engine.progress.fraction, 4)}
    return model | {
        **{name: getattr(ready, name) for name in SAME_IN_READY},
        "name": ready.model_name,
        "chat_template": bool(ready.chat_template),
        "vision": not ready.why_no_eyes,
        "why_no_vision": ready.why_no_eyes,
        "note": plain_turns.NOTE if ready.is_base else "",
        "chat": _chat_state(engine),
        "speculate": engine.start.speculate,
        "load_ms": round(ready.load_ms, 1),
        "start_ms": round(ready.start_ms, 1),
    }


def adapters_of(service: Service) -> list[dict[str, Any]]:
    """Return a model's LoRA adapters, with the scales of requests that name none."""
    engine, scales = service.engine, dict(service.lora)
    return [
        {
            "id": number,
            "name": each.name,
            "path": each.path,
            "scale": scales.get(number, each.scale),
            "task_name": each.task_name,
            "prompt_prefix": each.prompt_prefix,
        }
        for number, each in enumerate(engine.ready.adapters if engine and engine.ready else ())
    ]


def _chat_state(engine: EngineHandle) -> dict[str, Any]:
    """Return the abilities of the model's template, or its error; empty until it was examined."""
    if engine.chat_error:
        return {"error": engine.chat_error}
    found = engine.chat_abilities
    return {} if found is None else {"thinks": found.thinks, **found.abilities}


def state_of(service: Service) -> str:
    """Return the state of a model: unloaded, asleep, loading or serving."""
    if service.engine is not None:
        return "serving" if service.engine.serving else "loading"
    return "unloaded" if service.closed is not None else "asleep"


def model_row(
    service: Service, path: str, aliases: tuple[str, ...], live: list[Request], meters: Meters
) -> dict[str, Any]:
    """Return a model's names, state, memory in bytes, users, and speed over the last minute."""
    engine = service.engine
    ready = engine.ready if engine is not None else None
    loaded = model_of(engine) if engine is not None else {"path": path}
    recent, now_s = meters.recent_of(service.number), time.monotonic()
    p95 = recent.gaps[0].quantiles(now_s, (0.95,))[0]
    rss = process_stats(engine.pid).rss_bytes if engine is not None and engine.alive else None
    users = Counter(request.app for request in live if request.service is service)
    adapters = adapters_of(service)
    return loaded | ({"adapters": adapters} if adapters else {}) | {
        "id": service.label or path,
        "aliases": list(aliases),
        "default": service.number == DEFAULT,
        "role": service.role,
        "state": state_of(service),
        "stage": engine.progress.stage if engine is not None and ready is None else None,
        "memory_bytes": ready.memory_bytes if ready is not None else 0,
        "rss_gb": None if rss is None else round(rss / 1e9, 4),
        "p95_ms": None if p95 is None else round(p95, 3),
        "users": dict(users),
    }
