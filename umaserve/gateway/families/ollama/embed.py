"""Ollama's ``/api/embed``, and ``/api/embeddings``, which came before it."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.answers.vectors import vectors_of
from umaserve.gateway.translate.body import flag_of, read_object, text_of
from umaserve.gateway.translate.endpoint import Endpoint


async def embed(request: Request) -> Response:
    """A vector for each text; one that is too long loses its end, unless ``truncate`` is false."""
    body, began_ns = await read_object(request), time.monotonic_ns()
    told = {"model": text_of(body, "model") or "default"}
    if body.get("input") in (None, "", []):  # the model is to be loaded, which it is
        return json_response({**told, "embeddings": []})
    truncate = flag_of(body, "truncate", True)
    found = await vectors_of(request, body, "input", truncate=truncate)
    return json_response(
        {
            **told,
            "embeddings": [row.tolist() for row in found.rows],
            "total_duration": time.monotonic_ns() - began_ns,
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }
    )


async def embeddings(request: Request) -> Response:
    """The vector of one text."""
    body = await read_object(request)
    if not text_of(body, "prompt"):
        return json_response({"embedding": []})
    found = await vectors_of(request, body, "prompt", truncate=True)
    return json_response({"embedding": found.rows[0].tolist()})


_MODEL = {"model": {"type": "string"}, "truncate": {"type": "boolean"}}
_EMBED = {**_MODEL, "input": {"type": ["string", "array"]}}
_OLD = {**_MODEL, "prompt": {"type": "string"}}
ENDPOINTS = (
    Endpoint("POST", "/api/embed", embed, "vectors of texts", "Ollama", _EMBED),
    Endpoint("POST", "/api/embeddings", embeddings, "the vector of a text", "Ollama", _OLD),
)
