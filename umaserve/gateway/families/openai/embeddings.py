"""``/v1/embeddings``."""

from __future__ import annotations

import base64

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import malformed
from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.answers.vectors import vectors_of
from umaserve.gateway.translate.body import flag_of, read_object, text_of
from umaserve.gateway.translate.endpoint import Endpoint


async def embeddings(request: Request) -> Response:
    """A vector for each text."""
    body = await read_object(request)
    form = text_of(body, "encoding_format", "float")
    if form not in ("float", "base64"):
        text = "The format to return the embeddings in. Can be either float or base64"
        raise malformed(text)
    name = "input" if "input" in body else "content"
    found = await vectors_of(request, body, name, truncate=flag_of(body, "truncate"))
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(row).decode() if form == "base64" else row.tolist(),
        }
        for number, row in enumerate(found.rows)
    ]
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    model = text_of(body, "model") or found.model
    return json_response({"object": "list", "data": data, "model": model, "usage": usage})


_FIELDS = {
    "model": {"type": "string"},
    "input": {"type": ["string", "array", "object"]},
    "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    "dimensions": {"type": "integer", "minimum": 1},
    "truncate": {"type": "boolean"},
}
ENDPOINTS = tuple(
    Endpoint("POST", path, embeddings, "vectors of texts", "OpenAI", _FIELDS, ("input",))
    for path in ("/v1/embeddings", "/embeddings")
)
