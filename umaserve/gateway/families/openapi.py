"""``/openapi.json``: all routes as an OpenAPI document, made of the table that serves them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import umaserve
from umaserve.gateway.translate.answering import json_response
from umaserve.gateway.translate.endpoint import Endpoint

PATH = "/openapi.json"
_PARAMETER = re.compile(r"\{(\w+)")


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """The route that describes ``endpoints`` and itself."""

    async def answer(request: Request) -> Response:
        return json_response(document)

    itself = Endpoint("GET", PATH, answer, "this document", "ours")
    document = openapi([*endpoints, itself])
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
            "default": {"description": "an error, in the shape of the family"},
        },
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ]
    if endpoint.method == "POST":
        schema = {"type": "object", "properties": endpoint.fields}
        if endpoint.required:
            schema["required"] = list(endpoint.required)
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        operation["requestBody"] = body
    return operation
