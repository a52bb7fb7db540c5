"""Ollama's ``/api/chat`` and ``/api/generate``: lines of JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, encode, not_there, ollama_error, wrong
from umaserve.gateway.families.anthropic.shapes import input_of
from umaserve.gateway.translate import schemas as s
from umaserve.gateway.translate.answers.answering import Translator, answer, json_response
from umaserve.gateway.translate.answers.parts import Answer, Pieces, answer_of, unread_field
from umaserve.gateway.translate.answers.rated import entry_of, token_of
from umaserve.gateway.translate.body import (
    flag_of,
    list_of,
    object_of,
    objects_of,
    text_of,
    whole_of,
)
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.gap import with_gap
from umaserve.gateway.translate.messages import content_of, conversation_fields, effort, parts_of
from umaserve.gateway.translate.model import loaded_model, read_named
from umaserve.gateway.translate.pictures import text_part, with_data
from umaserve.gateway.translate.sampling import OWN, most_tokens, settings_fields
from umaserve.protocol import ROLES
from umaserve.protocol.tables.fields import MAX_LOGPROBS

LINES = "application/x-ndjson"
NS_PER_MS = 1_000_000
_REASONS = {"length": "length"}
_DURATION = re.compile(r"-?([0-9]+(\.[0-9]*)?(h|m|s|ms|us|µs|ns)?)+")


async def chat(request: Request) -> Response:
    """A conversation's next message."""
    body = await read_named(request)
    asked = objects_of(body, "messages")
    if not asked:
        return await _loaded_only(body, "message")
    message: dict[str, Any] = {"messages": [_as_openai(each) for each in asked], "deltas": True}
    tools = list_of(body, "tools")
    if tools:
        message["tools"] = tools
    return await _answer(request, body, message, "message")


async def generate(request: Request) -> Response:
    """Complete a prompt, as a user's message in a conversation unless ``raw``."""
    body = await read_named(request)
    prompt, system = text_of(body, "prompt"), text_of(body, "system")
    if not prompt:
        return await _loaded_only(body, "response")
    for name in ("template", "context"):
        if body.get(name):
            raise not_there(f'"{name}"')
    if text_of(body, "suffix"):
        model = await loaded_model(request)
        tokens = await with_gap(request.state.link, model, prompt, body["suffix"])
        message: dict[str, Any] = {"tokens": tokens}
    elif flag_of(body, "raw") or not (
        system or (await loaded_model(request)).get("chat_template")
    ):
        pictures = [with_data("image", each) for each in list_of(body, "images")]
        message = {"prompt": [*pictures, text_part(prompt)] if pictures else prompt}
    else:
        start = [{"role": "system", "content": system}] if system else []
        asked = _as_openai({"role": "user", "content": prompt, "images": body.get("images")})
        message = {"messages": [*start, asked], "deltas": True}
    return await _answer(request, body, message, "response")


def _as_openai(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form.  Raises ``Refusal``."""
    content = content_of(message.get("content"), "messages[].content")
    images = list_of(message, "images")
    if images:
        content = [*parts_of(content), *(with_data("image", each) for each in images)]
    found: dict[str, Any] = {"role": message.get("role"), "content": content}
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    calls = objects_of(message, "tool_calls")
    if calls:
        found["tool_calls"] = [_call(number, call) for number, call in enumerate(calls)]
    if message.get("tool_name"):
        found["name"] = message["tool_name"]
    if message.get("tool_call_id"):
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _call(number: int, call: dict[str, Any]) -> dict[str, Any]:
    function = object_of(call, "function")
    return {
        "id": str(call.get("id") or f"call_{number}"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": function.get("arguments")},
    }


async def _answer(
    request: Request, body: dict[str, Any], message: dict[str, Any], field: str
) -> Response:
    """``field`` is what an answer's text stands in: ``message`` or ``response``."""
    options = object_of(body, "options")
    caller = caller_fields(request, body)
    ours = {name: body.get(name) for name in OWN}
    message |= settings_fields(ours | options) | most_tokens(options, "num_predict")
    if message.get("max_tokens") == -2:  # until the context is full
        del message["max_tokens"]
    if body.get("think") not in (None, ""):
        message["thinking"] = effort(body["think"], "think")
    if "messages" in message:
        message |= conversation_fields(body)
    form = body.get("format")
    if form == "json":
        message["response_format"] = {"type": "json_object"}
    elif form:
        message["json_schema"] = form
    message |= caller
    keep_alive(body)
    whole_of(options, "num_ctx", 0, 0, 1 << 31)  # the context is the daemon's
    if flag_of(body, "logprobs"):
        message["logprobs"] = whole_of(body, "top_logprobs", 0, 0, MAX_LOGPROBS)
    return await answer(request, body, [message], _Lines(body["model"], field), streams=True)


async def _loaded_only(body: dict[str, Any], field: str) -> Response:
    """Answer a request without a prompt, by which clients load or unload a model.

    The model stays as it is.
    """
    reason = "load" if keep_alive(body) else "unload"
    told = _start(body["model"]) | _content(field, Answer())
    return json_response(told | {"done": True, "done_reason": reason})


def keep_alive(body: dict[str, Any]) -> bool:
    """Whether the client wants the model to stay, which it does.  Raises ``Refusal``."""
    value = body.get("keep_alive")
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return value.strip("0.hmsnuµ") != ""
    if value is None or isinstance(value, int | float) and not isinstance(value, bool):
        return value != 0
    raise wrong("keep_alive", 'be a number of seconds, or a duration such as "5m"')


def _logprobs(tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = [entry_of(token, token.get("top_logprobs")) for token in tokens]
    return {"logprobs": found} if found else {}


def _start(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": datetime.now(timezone.utc).isoformat()}


def _content(field: str, answer: Answer) -> dict[str, Any]:
    if field == "response":
        thinking = {"thinking": answer.reasoning} if answer.reasoning else {}
        return {"response": answer.text, **thinking, "done": False}
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        message["thinking"] = answer.reasoning
    if answer.whole_calls:
        message["tool_calls"] = [
            {"function": {"name": call.name, "arguments": input_of(call.arguments)}}
            for call in answer.whole_calls
        ]
    return {"message": message, "done": False}


def _end(end: Event, began_ns: int) -> dict[str, Any]:
    """The counts of the last line; times in nanoseconds."""
    prompt_ms = max(0.0, end.ms("ttft_ms") - end.ms("queue_ms"))
    return {
        "done": True,
        "done_reason": _REASONS.get(end.reason, "stop"),
        "total_duration": time.monotonic_ns() - began_ns,
        "load_duration": 0,
        "prompt_eval_count": end.tokens("prompt_tokens"),
        "prompt_eval_duration": int(prompt_ms * NS_PER_MS),
        "cached_count": end.tokens("cached_tokens"),
        "eval_count": end.tokens("completion_tokens"),
        "eval_duration": int(max(0.0, end.ms("total_ms") - end.ms("ttft_ms")) * NS_PER_MS),
        **unread_field(end),
    }


class _Lines(Translator):
    """An object, or a line of JSON for each piece.  A tool's call has a line when it is whole."""

    content_type = LINES

    def __init__(self, name: str, field: str) -> None:
        self._name, self._field = name, field
        self._pieces = Pieces()
        self._tokens: list[dict[str, Any]] = []
        self._began_ns = time.monotonic_ns()

    def whole(self, ends: list[Event]) -> Any:
        (end,) = ends
        told = _start(self._name or end.model) | _content(self._field, answer_of(end))
        return told | _logprobs(end.logprobs or ()) | _end(end, self._began_ns)

    @property
    def ping(self) -> bytes:
        """A line that adds nothing: clients take no empty one."""
        return self._line(_content(self._field, Answer()))

    def begun(self, number: int, begin: Event) -> None:
        self._name = self._name or begin.model
        self._pieces.takes_deltas = begin.deltas

    def feed(self, number: int, event: Event) -> bytes:
        piece = self._pieces.of(event)
        if event.event == "token" and event.logprob is not None:
            self._tokens.append(token_of(event))
        out = b""
        if piece.text or piece.reasoning:
            content = _content(self._field, Answer(piece.text, piece.reasoning))
            out = self._line(content | self._new_logprobs())
        if event.event == "eos":
            calls = answer_of(event).whole_calls
            if calls:
                out += self._line(_content(self._field, Answer(calls=calls)))
            last = _content(self._field, Answer()) | self._new_logprobs()
            out += self._line(last | _end(event, self._began_ns))
        return out

    def fail(self, refusal: Refusal) -> bytes:
        return encode(ollama_error(refusal)) + b"\n"

    def _new_logprobs(self) -> dict[str, Any]:
        """Return ``logprobs`` of the tokens since the last line; empty where there are none."""
        told, self._tokens = _logprobs(self._tokens), []
        return told

    def _line(self, rest: dict[str, Any]) -> bytes:
        return encode(_start(self._name) | rest) + b"\n"


_COMMON = {
    "model": s.TEXT,
    "stream": s.FLAG,
    "think": {"anyOf": [s.FLAG, s.CHAT["reasoning_effort"]]},
    "keep_alive": {"type": ["number", "string"]},
    "logprobs": s.FLAG,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
    "options": {
        "type": "object",
        "properties": {**s.SAMPLING, "num_predict": {"type": "integer", "minimum": -2}},
    },
    **s.CONVERSATION,
    **s.OURS,
    **s.CALLER,
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": [*ROLES]},
        "content": s.TEXT,
        "thinking": s.TEXT,
        "tool_name": s.TEXT,
        "tool_calls": {"type": "array", "items": {"type": "object", "properties": {
            "function": {"type": "object", "properties": {"name": s.TEXT, "arguments": s.OBJECT},
                         "required": ["name"]}}, "required": ["function"]}},
    },
    "required": ["role"],
}  # fmt: skip
_CHAT = {**_COMMON, "messages": {"type": "array", "items": _MESSAGE}, "tools": s.CHAT["tools"]}
_PROMPT = {**_COMMON, "prompt": s.TEXT, "system": s.TEXT, "suffix": s.TEXT, "raw": s.FLAG}
ENDPOINTS = (
    Endpoint("POST", "/api/chat", chat, "a conversation's next message", "Ollama", _CHAT),
    Endpoint("POST", "/api/generate", generate, "what follows a prompt", "Ollama", _PROMPT),
)
