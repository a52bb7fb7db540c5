"""``/v1/responses/{id}``: responses that are kept, to be read again or forgotten."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import Refusal, not_there, wrong
from umaserve.gateway.families.openai.kept import Entry
from umaserve.gateway.translate.answering import json_response
from umaserve.gateway.translate.body import objects_of
from umaserve.gateway.translate.endpoint import Endpoint

LIMIT, MOST = 20, 100  # items of a page


async def one_response(request: Request) -> Response:
    """A response as it was told."""
    if request.query_params.get("stream", "false").lower() == "true":
        raise not_there('"stream" of a response that is over')
    return json_response(_entry(request).response)


async def forget(request: Request) -> Response:
    """Forget a response; what went on from it is kept."""
    _entry(request)
    id = request.path_params["id"]
    request.state.kept.drop(id)
    return json_response({"id": id, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """The items of its input, the newest first unless ``order`` is ``asc``."""
    items, query = _entry(request).items, request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", ""), query.get("after")
    if order not in ("asc", "desc"):
        raise wrong("order", "be asc or desc")
    if limit and not (limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST):
        raise wrong("limit", f"be a whole number from 1 to {MOST}")
    if order == "desc":
        items = items[::-1]
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise wrong("after", "be the id of an item of this response")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit or LIMIT)]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
    )


def _entry(request: Request) -> Entry:
    entry: Entry | None = request.state.kept.get(request.path_params["id"], request.state.key)
    if entry is None:
        raise Refusal(404, "response_not_found", "no response of this id is kept")
    return entry


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of ``input`` as they are told again, each with an id."""
    given = body.get("input")
    found = [{"role": "user", "content": given}] if isinstance(given, str) else None
    return [_item(item) for item in (found or objects_of(body, "input"))]


def _item(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    told = {"id": "msg_" + os.urandom(12).hex(), **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        of_model = item.get("role") == "assistant"
        part = {"type": "output_text" if of_model else "input_text", "text": item["content"]}
        told["content"] = [part]
    return told


ENDPOINTS = tuple(
    Endpoint(method, start + "/responses/{id}" + end, handler, summary, "OpenAI")
    for start in ("/v1", "")
    for method, end, handler, summary in (
        ("GET", "", one_response, "a response that is kept"),
        ("DELETE", "", forget, "forget a response"),
        ("GET", "/input_items", input_items, "the items of a response's input"),
    )
)
