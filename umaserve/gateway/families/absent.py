"""Routes that other servers have and this one has not: each says so in words.

A client learns from 501 that it need not try again; 404 would look like a wrong address.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import not_there
from umaserve.gateway.translate.endpoint import Endpoint

_OF_OPENAI = {
    "compacting a conversation": ("POST /responses/compact",),
    "cancelling a response by its id (close the connection instead)": (
        "POST /responses/{id}/cancel",
    ),
    "conversations that are kept (use previous_response_id)": (
        "POST /conversations",
        "GET /conversations/{id}", "POST /conversations/{id}", "DELETE /conversations/{id}",
        "GET /conversations/{id}/items", "POST /conversations/{id}/items",
        "GET /conversations/{id}/items/{item}", "DELETE /conversations/{id}/items/{item}",
    ),
    "ending thoughts that run (thinking_budget bounds them)": ("POST /chat/completions/control",),
    "resuming a stream": ("GET /stream", "DELETE /stream", "POST /streams/lookup"),
    "sound": ("POST /audio/speech", "POST /audio/transcriptions", "POST /audio/translations"),
    "making images": ("POST /images/generations", "POST /images/edits"),
    "moderation": ("POST /moderations",),
    "files": ("GET /files", "POST /files"),
    "batches": ("GET /batches", "POST /batches"),
}  # fmt: skip


def _endpoint(method: str, path: str, what: str, family: str) -> Endpoint:
    async def answer(request: Request) -> Response:
        raise not_there(what)

    return Endpoint(method, path, answer, f"not here (501): {what}", family)


ENDPOINTS = (
    _endpoint("POST", "/slots/{id}", "saving, restoring and erasing a slot", "llama-server"),
    _endpoint("POST", "/v1/messages/batches", "batches", "Anthropic"),
    _endpoint("GET", "/v1/messages/batches", "batches", "Anthropic"),
    *(
        _endpoint(method, start + path, what, "OpenAI")
        for what, routes in _OF_OPENAI.items()
        for method, path in map(str.split, routes)
        for start in ("/v1", "")
    ),
)  # fmt: skip
