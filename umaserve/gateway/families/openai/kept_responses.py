"""``/v1/responses/{id}``: responses that are kept, to be read again or forgotten."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import decode_any
from umaserve.gateway.daemon.refusal import Refusal, wrong
from umaserve.gateway.families.openai.kept import Entry
from umaserve.gateway.translate.answers.answering import EVENT_STREAM, json_response, sse
from umaserve.gateway.translate.body import objects_of
from umaserve.gateway.translate.endpoint import Endpoint

LIMIT, MOST = 20, 100  # items of a page
# the fields of a call that come as a stream, and the names of their events
_CALLED = {"arguments": "function_call_arguments", "input": "custom_tool_call_input"}


async def one_response(request: Request) -> Response:
    """A response as it was told."""
    response, query = _entry(request).response, request.query_params
    if query.get("stream", "false").lower() != "true":
        return json_response(Raw(response))
    after = query.get("starting_after", "")
    if after and not (after.isdecimal() and len(after) < 10):
        raise wrong("starting_after", "be a whole number")
    first = int(after) + 1 if after else 0
    told = [
        sse({**event, "sequence_number": number}, "type")
        for number, event in enumerate(_events(decode_any(response)))
        if number >= first
    ]
    return Response(b"".join(told), media_type=EVENT_STREAM)


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A stream of a response that is over: each text and each call comes at once."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": begun}
    for index, item in enumerate(response["output"]):
        where = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = {"content": [], "arguments": "", "input": ""}
        start = {**item, **{n: empty[n] for n in empty if n in item}, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        for number, part in enumerate(item.get("content", ())):
            yield from _part_events(part, {**where, "content_index": number})
        for name, kind in _CALLED.items():
            if name in item:
                yield {"type": f"response.{kind}.delta", "delta": item[name], **where}
                yield {"type": f"response.{kind}.done", name: item[name], **where}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _part_events(part: dict[str, Any], where: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, text = f"response.{part['type']}", part["text"]
    more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
    yield {"type": f"{kind}.delta", "delta": text, **where, **more}
    yield {"type": f"{kind}.done", "text": text, **where, **more}
    yield {"type": "response.content_part.done", **where, "part": part}


async def forget(request: Request) -> Response:
    """Forget a response; what went on from it is kept."""
    _entry(request)
    id = request.path_params["id"]
    request.state.kept.drop(id, request.state.key)
    return json_response({"id": id, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """The items of its input, the newest first unless ``order`` is ``asc``."""
    items, query = _entry(request).input, request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", ""), query.get("after")
    if order not in ("asc", "desc"):
        raise wrong("order", "be asc or desc")
    if limit and not (limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST):
        raise wrong("limit", f"be a whole number from 1 to {MOST}")
    if order == "desc":
        items = items[::-1]
    if after:
        ids = [id for id, _ in items]
        if after not in ids:
            raise wrong("after", "be the id of an item of this response")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit or LIMIT)]
    return json_response(
        {
            "object": "list",
            "data": [Raw(item) for _, item in page],
            "first_id": page[0][0] if page else None,
            "last_id": page[-1][0] if page else None,
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
    told = {**item, "id": item.get("id") or "msg_" + os.urandom(12).hex(), "type": kind}
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
