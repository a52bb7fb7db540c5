"""``/v1/models``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import Refusal, asks_anthropic
from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.body import FOR_ANTHROPIC
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.model import context_of, is_called, known_models, note_of

_NO_ENDS = {"first_id": None, "last_id": None}
# by llama-server's words
_STATUS = {"serving": "loaded", "asleep": "unloaded"}


async def models(request: Request) -> Response:
    """The models, the default one first."""
    known = await known_models(request)
    if asks_anthropic(request.headers):
        found = [*map(_for_anthropic, known)]
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else _NO_ENDS
        return json_response({"data": found, "has_more": False, **ends})
    data = [*map(_entry, known)]
    if known[1:]:  # clients of llama-server take one that tells states for a router
        for entry, model in zip(data, known, strict=True):
            entry["status"] = {"value": _STATUS.get(model["state"], model["state"])}
    return json_response({"object": "list", "data": data, "models": [_short(m) for m in data]})


async def one_model(request: Request) -> Response:
    """The model of that name."""
    name, anthropic = request.path_params["name"], asks_anthropic(request.headers)
    name = name.removeprefix(FOR_ANTHROPIC) if anthropic else name
    for model in await known_models(request):
        if is_called(model, name):
            return json_response((_for_anthropic if anthropic else _entry)(model))
    raise Refusal(404, "model_not_found", "no model of this name is loaded; see /v1/models")


def _for_anthropic(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "model",
        "id": FOR_ANTHROPIC + model["id"],
        "display_name": model["id"],
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": context_of(model),
        "max_tokens": context_of(model),
        **note_of(model),
    }


def _entry(model: dict[str, Any]) -> dict[str, Any]:
    context = context_of(model)
    return {
        "id": model["id"],
        "object": "model",
        "created": 0,
        "owned_by": "umaserve",
        "context_length": context,
        "max_model_len": context,
        "aliases": model["aliases"],
        **({"role": model["role"]} if model["role"] in ("embed", "rerank") else {}),
        **_about(model),
        **note_of(model),
    }


def _about(model: dict[str, Any]) -> dict[str, Any]:
    if "name" not in model:
        return {}
    meta = {name: model[name] for name in ("n_ctx_train", "n_vocab", "n_params")}
    meta = {"n_ctx": context_of(model), **meta, "size": model["model_bytes"]}
    reads = ["text", "image"] if model.get("vision") else ["text"]
    return {"input_modalities": reads, "meta": meta}


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    return {"name": entry["id"], "model": entry["id"], "context_length": entry["context_length"]}


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "the models", "OpenAI"),
    Endpoint("GET", "/models", models, "the models", "OpenAI"),
    Endpoint("GET", "/v1/models/{name:path}", one_model, "the model of that name", "OpenAI"),
    Endpoint("GET", "/models/{name:path}", one_model, "the model of that name", "OpenAI"),
)
