"""``/v1/models``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import Refusal, asks_anthropic
from umaserve.gateway.translate.answering import json_response
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.model import context_of, loaded_model, note_of

# Claude Code offers the models of a gateway whose id has `claude` or `anthropic` in it.
FOR_ANTHROPIC = "anthropic-local/"


async def models(request: Request) -> Response:
    """The one model; none while none is loaded."""
    model = await loaded_model(request)
    if asks_anthropic(request.headers):
        found = [_for_anthropic(model)] if model else []
        end = found[0]["id"] if found else None
        return json_response({"data": found, "has_more": False, "first_id": end, "last_id": end})
    data = [_entry(model)] if model else []
    return json_response({"object": "list", "data": data, "models": [_short(m) for m in data]})


async def one_model(request: Request) -> Response:
    """The model of that name."""
    model, name = await loaded_model(request), request.path_params["name"]
    anthropic = asks_anthropic(request.headers)
    if not model or (name.removeprefix(FOR_ANTHROPIC) if anthropic else name) != model["name"]:
        raise Refusal(404, "model_not_found", "no model of this name is loaded; see /v1/models")
    shape = _for_anthropic if anthropic else _entry
    return json_response(shape(model))


def _for_anthropic(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "model",
        "id": FOR_ANTHROPIC + model["name"],
        "display_name": model["name"],
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": context_of(model),
        "max_tokens": context_of(model),
        **note_of(model),
    }


def _entry(model: dict[str, Any]) -> dict[str, Any]:
    context = context_of(model)
    return {
        "id": model["name"],
        "object": "model",
        "created": 0,
        "owned_by": "umaserve",
        "context_length": context,
        "max_model_len": context,
        "meta": {
            "n_ctx": context,
            "n_ctx_train": model["n_ctx_train"],
            "n_vocab": model["n_vocab"],
            "n_params": model["n_params"],
            "size": model["model_bytes"],
        },
        **note_of(model),
    }


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    return {"name": entry["id"], "model": entry["id"], "context_length": entry["context_length"]}


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "the model", "OpenAI"),
    Endpoint("GET", "/models", models, "the model", "OpenAI"),
    Endpoint("GET", "/v1/models/{name:path}", one_model, "the model of that name", "OpenAI"),
    Endpoint("GET", "/models/{name:path}", one_model, "the model of that name", "OpenAI"),
)
