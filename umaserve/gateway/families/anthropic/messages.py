"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, anthropic_error, wrong
from umaserve.gateway.families.anthropic.history import conversation
from umaserve.gateway.families.anthropic.shapes import (
    MESSAGE,
    TEXT_BLOCK,
    TOOL,
    TOOL_CHOICE,
    blocks_of,
    no_thread,
    schema_field,
    stop_reason,
    thinking_field,
    tool_fields,
    usage,
)
from umaserve.gateway.translate.answers.answering import (
    SSE_COMMENT,
    Translator,
    cache_header,
    json_response,
    link_of,
    sse,
    stream,
    whole,
)
from umaserve.gateway.translate.answers.parts import Piece, Pieces, answer_of, unread_field
from umaserve.gateway.translate.body import flag_of, list_of, object_of, read_object
from umaserve.gateway.translate.caller import caller_fields, lane_header
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import conversation_fields, wants_deltas
from umaserve.gateway.translate.model import read_request
from umaserve.gateway.translate.prompts import count_of
from umaserve.gateway.translate.sampling import settings_fields
from umaserve.gateway.translate.schemas import ASKED, AT_LEAST_1, BUDGET, CONVERSATION, TEXT


async def messages(request: Request) -> Response:
    """A conversation's next message."""
    body = await read_request(request)
    message = _message(request, body)
    headers = {"x-uma-lane": lane_header(message), "request-id": "req_" + os.urandom(12).hex()}
    name, id = body["model"], "msg_" + os.urandom(12).hex()
    if flag_of(body, "stream"):
        events = _Events(id, name, wants_deltas(message))
        return await stream(request, [message], events, headers)
    (end,) = await whole(request, [message])
    answer = answer_of(end)
    told = {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": name or end.model,
        "content": blocks_of(answer),
        "stop_reason": stop_reason(end),
        "stop_sequence": end.stop,
        "usage": usage(end),
        **unread_field(end),
    }
    return json_response(told, headers=headers | cache_header([end]))


def _message(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    no_thread(body)
    most = body.get("max_tokens")
    if most is None:
        raise wrong("max_tokens", "be given")
    if most == 0:
        raise wrong("max_tokens", "be at least 1")
    caller = caller_fields(request, body)
    user = object_of(body, "metadata").get("user_id")
    if isinstance(user, str) and user:
        caller.setdefault("session", user[-128:])  # what tells sessions apart stands at its end
    message = {"deltas": True, **settings_fields(body), "max_tokens": most}
    if list_of(body, "stop_sequences"):
        message["stop"] = body["stop_sequences"]
    asked = _conversation(body)
    if asked["messages"][-1]["role"] == "assistant":
        asked.setdefault("continue_final_message", True)
    return {**message, **asked, **schema_field(body), **caller}


def _conversation(body: dict[str, Any]) -> dict[str, Any]:
    """The socket's fields of what the model reads."""
    return {
        "messages": conversation(body),
        **conversation_fields(body),
        **tool_fields(body),
        **thinking_field(body),
    }


class _Events(Translator):
    """The stream's events: blocks one after the other, each begun, filled and ended."""

    def __init__(self, id: str, model: str, takes_deltas: bool) -> None:
        self._id, self._model = id, model
        self._pieces = Pieces(takes_deltas)
        self._counts = Event()
        self._begun = False
        self._index, self._block = -1, ""

    @property
    def ping(self) -> bytes:
        """Before the first event, nothing but a comment may come."""
        return _event({"type": "ping"}) if self._begun else SSE_COMMENT

    def begun(self, number: int, begin: Event) -> None:
        self._model = self._model or begin.model
        self._counts, self._pieces.takes_deltas = begin, begin.deltas

    def feed(self, number: int, event: Event) -> bytes:
        parts = [] if self._begun else [self._start(event)]
        piece = self._pieces.of(event)
        if piece:
            self._piece(piece, parts)
        if event.event == "eos":
            if self._index < 0:
                self._open("text", {"type": "text", "text": ""}, parts)
            self._close(parts)
            delta = {"stop_reason": stop_reason(event), "stop_sequence": event.stop}
            parts.append(_event({"type": "message_delta", "delta": delta, "usage": usage(event)}))
        return b"".join(parts)

    def end(self) -> bytes:
        return _event({"type": "message_stop"})

    def fail(self, refusal: Refusal) -> bytes:
        return _event(anthropic_error(refusal))

    def _start(self, event: Event) -> bytes:
        self._begun = True
        counts = usage(self._counts if event.usage is None else event) | {"output_tokens": 0}
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts,
            **unread_field(self._counts),
        }
        return _event({"type": "message_start", "message": message}) + _event({"type": "ping"})

    def _piece(self, piece: Piece, parts: list[bytes]) -> None:
        if piece.reasoning:
            self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""}, parts)
            self._delta({"type": "thinking_delta", "thinking": piece.reasoning}, parts)
        if piece.text:
            self._open("text", {"type": "text", "text": ""}, parts)
            self._delta({"type": "text_delta", "text": piece.text}, parts)
        for call in piece.calls:
            block = {"type": "tool_use", "id": call.get("id"), "name": call.get("name")}
            self._open(f"tool {call.get('index', 0)}", {**block, "input": {}}, parts)
            if call.get("arguments"):
                delta = {"type": "input_json_delta", "partial_json": call["arguments"]}
                self._delta(delta, parts)

    def _open(self, kind: str, block: dict[str, Any], parts: list[bytes]) -> None:
        """Begin a block, unless it is the one that is being filled."""
        if kind == self._block:
            return
        self._close(parts)
        self._index, self._block = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        parts.append(_event(start))

    def _close(self, parts: list[bytes]) -> None:
        if not self._block:
            return
        if self._block == "thinking":
            self._delta({"type": "signature_delta", "signature": ""}, parts)
        parts.append(_event({"type": "content_block_stop", "index": self._index}))
        self._block = ""

    def _delta(self, delta: dict[str, Any], parts: list[bytes]) -> None:
        told = {"type": "content_block_delta", "index": self._index, "delta": delta}
        parts.append(_event(told))


def _event(event: dict[str, Any]) -> bytes:
    return sse(event, "type")


async def count_tokens(request: Request) -> Response:
    """How many tokens the model would read."""
    body = await read_object(request)
    return json_response(await count_of(link_of(request), _conversation(body)))


_FIELDS = {
    **ASKED,
    **CONVERSATION,
    "max_tokens": AT_LEAST_1,
    "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
    "system": {"anyOf": [TEXT, {"type": "array", "items": TEXT_BLOCK}]},
    "tools": {"type": "array", "items": TOOL},
    "tool_choice": TOOL_CHOICE,
    "thinking": {"type": "object", "properties": {
        "type": {"enum": ["enabled", "disabled", "adaptive"]},
        "budget_tokens": BUDGET}},
    "stop_sequences": {"type": "array", "items": TEXT},
    "metadata": {"type": "object", "properties": {"user_id": TEXT}},
}  # fmt: skip
ENDPOINTS = (
    Endpoint(
        "POST", "/v1/messages", messages, "a conversation's next message", "Anthropic", _FIELDS,
        ("max_tokens", "messages"),
    ),
    Endpoint(
        "POST", "/v1/messages/count_tokens", count_tokens, "tokens of a conversation", "Anthropic",
        _FIELDS, ("messages",),
    ),
)  # fmt: skip
