"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.link import link_of
from umaserve.gateway.daemon.refusal import Refusal, anthropic_error, wrong
from umaserve.gateway.families.anthropic import shapes
from umaserve.gateway.families.anthropic.history import conversation
from umaserve.gateway.translate.answers.answering import (
    SSE_COMMENT,
    Translator,
    answer,
    json_response,
    sse,
)
from umaserve.gateway.translate.answers.parts import Piece, Pieces, answer_of, unread_field
from umaserve.gateway.translate.body import list_of, object_of, read_object
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import conversation_fields
from umaserve.gateway.translate.model import read_request
from umaserve.gateway.translate.prompts import count_of
from umaserve.gateway.translate.sampling import settings_fields
from umaserve.gateway.translate.schemas import ASKED, AT_LEAST_1, BUDGET, CONVERSATION, TEXT


async def messages(request: Request) -> Response:
    """A conversation's next message."""
    body = await read_request(request)
    return await answer(request, body, [_message(request, body)], _Events(body["model"]))


def _message(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    shapes.no_thread(body)
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
    return {**message, **asked, **shapes.schema_field(body), **caller}


def _conversation(body: dict[str, Any]) -> dict[str, Any]:
    """The socket's fields of what the model reads."""
    return {
        "messages": conversation(body),
        **conversation_fields(body),
        **shapes.tool_fields(body),
        **shapes.thinking_field(body),
    }


class _Events(Translator):
    """A message, whole or as a stream of blocks: one after the other is begun, filled and ended."""

    def __init__(self, model: str) -> None:
        self.headers = {"request-id": "req_" + os.urandom(12).hex()}
        self._model, self._pieces = model, Pieces()
        self._counts = Event()
        self._begun = False
        self._index, self._block = -1, ""

    def whole(self, ends: list[Event]) -> Any:
        (end,) = ends
        self._model = self._model or end.model
        stop = {"stop_reason": shapes.stop_reason(end), "stop_sequence": end.stop}
        told = stop | {"usage": shapes.usage(end)}
        return self._message(end, shapes.blocks_of(answer_of(end)), told)

    def _message(self, event: Event, content: list[Any], told: dict[str, Any]) -> dict[str, Any]:
        named = {"id": "msg_" + os.urandom(12).hex(), "type": "message", "role": "assistant"}
        return {**named, "model": self._model, "content": content, **told, **unread_field(event)}

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
            delta = {"stop_reason": shapes.stop_reason(event), "stop_sequence": event.stop}
            told = {"type": "message_delta", "delta": delta, "usage": shapes.usage(event)}
            parts.append(_event(told))
        return b"".join(parts)

    def end(self) -> bytes:
        return _event({"type": "message_stop"})

    def fail(self, refusal: Refusal) -> bytes:
        return _event(anthropic_error(refusal))

    def _start(self, event: Event) -> bytes:
        self._begun = True
        counts = shapes.usage(self._counts if event.usage is None else event) | {"output_tokens": 0}
        told = {"stop_reason": None, "stop_sequence": None, "usage": counts}
        message = self._message(self._counts, [], told)
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
    "messages": {"type": "array", "items": shapes.MESSAGE, "minItems": 1},
    "system": {"anyOf": [TEXT, {"type": "array", "items": shapes.TEXT_BLOCK}]},
    "tools": {"type": "array", "items": shapes.TOOL},
    "tool_choice": shapes.TOOL_CHOICE,
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
