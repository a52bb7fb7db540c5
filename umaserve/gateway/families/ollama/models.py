"""Ollama's routes about models, which change no model here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import umaserve
from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.body import read_object
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.model import context_of, known_models, loaded_model, note_of

VERSION = "0.12.6"  # of the interface; some clients ask for a newer one than they need


async def version(request: Request) -> Response:
    """Versions of the interface and of this server."""
    return json_response({"version": VERSION, "umaserve": umaserve.__version__})


async def tags(request: Request) -> Response:
    """The models, the default one first."""
    return json_response({"models": [*map(_entry, await known_models(request))]})


async def running(request: Request) -> Response:
    """The models that are loaded."""
    known = await known_models(request)
    return json_response({"models": [_running(model) for model in known if "name" in model]})


def _running(model: dict[str, Any]) -> dict[str, Any]:
    entry = _entry(model) | {
        "expires_at": "2318-01-01T00:00:00Z",
        "size_vram": 0 if model["backend"] == "cpu" else model["model_bytes"],
        "context_length": context_of(model),
    }
    del entry["modified_at"]
    return entry


async def show(request: Request) -> Response:
    """Describe a model; one that is asleep is loaded first."""
    await read_object(request)
    model = await loaded_model(request)
    if not model:
        raise Refusal(404, "model_not_found", "no model is loaded")
    kind = model["architecture"]
    return json_response(
        {
            "parameters": "",
            "template": "",
            "details": _details(model),
            "model_info": {
                "general.architecture": kind,
                "general.basename": model["name"],
                "general.parameter_count": model["n_params"],
                f"{kind}.context_length": context_of(model),
            },
            "capabilities": _capabilities(model),
            **note_of(model),
            "modified_at": "1970-01-01T00:00:00Z",
        }
    )


def _capabilities(model: dict[str, Any]) -> list[str]:
    if not model.get("generates", True):
        return ["reranking"] if model.get("pooling") == "rank" else ["embedding"]
    chat, found = model.get("chat") or {}, ["completion"]
    has_template = model["chat_template"] and "error" not in chat
    if has_template and chat.get("supports_tools", True):
        found.append("tools")
    if model.get("vision"):
        found.append("vision")
    if has_template and chat.get("thinks"):
        found.append("thinking")
    if all(name in (model.get("gap") or {}) for name in ("prefix", "suffix", "middle")):
        found.append("insert")
    return found


def _entry(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": model["id"],
        "model": model["id"],
        "modified_at": "1970-01-01T00:00:00Z",
        "size": model.get("model_bytes", 0),
        "digest": "",
        "details": _details(model),
    }


def _details(model: dict[str, Any]) -> dict[str, Any]:
    billions = model.get("n_params", 0) / 1e9
    family = model.get("architecture", "")
    quantization = model.get("description", "").split()[-1:]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": f"{billions:.1f}B" if billions >= 1 else f"{billions * 1e3:.0f}M",
        "quantization_level": "".join(quantization),
    }


async def not_done_here(request: Request) -> Response:
    """Models are the daemon's matter."""
    text = "models are not changed over HTTP; `umaserve load` serves another one, and so does /load"
    raise Refusal(403, "not_done_here", text)


_CHANGES = (
    ("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"),
    ("DELETE", "/api/delete"), ("POST", "/api/blobs/{digest}"),
)  # fmt: skip
ENDPOINTS = (
    Endpoint("GET", "/api/version", version, "of the interface", "Ollama"),
    Endpoint("GET", "/api/tags", tags, "the model", "Ollama"),
    Endpoint("GET", "/api/ps", running, "the model", "Ollama"),
    Endpoint("POST", "/api/show", show, "what is known of the model", "Ollama"),
    *(
        Endpoint(method, path, not_done_here, "not done here: 403", "Ollama")
        for method, path in _CHANGES
    ),
)
