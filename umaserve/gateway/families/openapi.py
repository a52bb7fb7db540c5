"""``/openapi.json``: all routes as an OpenAPI document, made of the table that serves them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import umaserve
from umaserve.gateway.daemon.refusal import encode
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.schemas import COMPONENTS

PATH = "/openapi.json"
_PARAMETER = re.compile(r"\{(\w+)")
_NAME = {"type": "string", "minLength": 1}
_HEADERS: dict[str, Any] = {
    "X-UMA-Priority": {"enum": ["interactive", "background", "auto"]},
    "X-UMA-Session": _NAME,
    "X-UMA-App": _NAME,
}


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """The route that describes ``endpoints`` and itself."""

    async def answer(request: Request) -> Response:
        return Response(body, media_type="application/json")

    itself = Endpoint("GET", PATH, answer, "this document", "ours")
    body = encode(openapi([*endpoints, itself]))
    return itself


def openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document.  Fields that are not named in it are ignored."""
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = each.path.replace(":path}", "}")
        paths.setdefault(path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "UMA Serve", "version": umaserve.__version__},
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "tags": [endpoint.family],
        "responses": {
            "200": {"description": "the answer"},
            "429": {"description": "the queue is full; Retry-After says when to come again"},
            "501": {"description": "something that the family has, and this server has not"},
            "503": {"description": "no model or no daemon; Retry-After says when to come again"},
            "default": {"description": "an error, in the shape of the family"},
        },
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _NAME}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if "priority" in endpoint.fields:  # it asks for text
        parameters += [{"name": n, "in": "header", "schema": kind} for n, kind in _HEADERS.items()]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.method == "POST":
        schema: dict[str, Any] = {"type": "object", "properties": endpoint.fields}
        if endpoint.required:
            schema["required"] = list(endpoint.required)
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        operation["requestBody"] = body
    return operation
