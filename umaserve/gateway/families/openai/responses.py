"""``/v1/responses``."""

from __future__ import annotations

import os
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.link import link_of
from umaserve.gateway.daemon.refusal import Refusal, not_there, openai_error, wrong
from umaserve.gateway.families.openai.items import (
    ITEM,
    TOOL,
    Tools,
    effort_of,
    messages_of,
    resolved,
)
from umaserve.gateway.families.openai.kept import Entry, Kept
from umaserve.gateway.families.openai.kept_responses import items_of
from umaserve.gateway.families.openai.output import Output, message_of
from umaserve.gateway.families.openai.shapes import COUNTED
from umaserve.gateway.translate import schemas as s
from umaserve.gateway.translate.answers.answering import Translator, answer, json_response, sse
from umaserve.gateway.translate.answers.parts import Pieces, answer_of, unread_field
from umaserve.gateway.translate.answers.timings import Progress, progress_fields, timings
from umaserve.gateway.translate.body import flag_of, object_of, text_of
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import (
    conversation_fields,
    effort,
    format_field,
    in_order,
)
from umaserve.gateway.translate.model import read_named
from umaserve.gateway.translate.prompts import count_of
from umaserve.gateway.translate.sampling import most_tokens, settings_fields

_TOLD_ERROR = ("code", "message", "n_prompt_tokens", "n_ctx")
_ECHOED = ("instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p")


async def responses(request: Request) -> Response:
    """The next items of a conversation."""
    body = await read_named(request)
    _check(body)
    caller = caller_fields(request, body)
    kept, owner = request.state.kept, caller.get("key", "")
    body = resolved(body, kept, owner, link_of(request).max_body_bytes)
    tools, history = Tools(body), _history(body, kept, owner)
    message = {
        "deltas": True,
        **settings_fields(body),
        **most_tokens(body, "max_output_tokens"),
        **_conversation(body, tools, history),
        **format_field(object_of(body, "text").get("format"), "text.format"),
        **progress_fields(body),
        **caller,
    }
    keep = (kept, owner, history) if flag_of(body, "store", True) else None
    return await answer(request, body, [message], _Response(body, tools, keep))


async def input_tokens(request: Request) -> Response:
    """How many tokens the model would read."""
    body = await read_named(request)
    kept, owner = request.state.kept, request.state.key
    body = resolved(body, kept, owner, link_of(request).max_body_bytes)
    fields = _conversation(body, Tools(body), _history(body, kept, owner))
    return json_response(COUNTED | await count_of(link_of(request), fields))


def _history(body: dict[str, Any], kept: Kept, owner: str) -> list[dict[str, Any]]:
    """Return the conversation so far as messages of a chat.  Raises ``Refusal``."""
    history: list[dict[str, Any]] = []
    if text_of(body, "previous_response_id"):
        history = kept.history(body["previous_response_id"], owner)
    history = history + messages_of(body)
    if not history:
        raise wrong("input", "be a text, or a list of at least one item")
    return history


def _conversation(
    body: dict[str, Any], tools: Tools, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """The socket's fields of what the model reads."""
    instructions = text_of(body, "instructions")
    start = [{"role": "system", "content": instructions}] if instructions else []
    fields = {"messages": in_order(start + history), **tools.fields(body)}
    if effort_of(body) is not None:
        fields["thinking"] = effort(effort_of(body), "reasoning.effort")
    return fields | conversation_fields(body)


def _check(body: dict[str, Any]) -> None:
    """Raises ``Refusal`` for what would change the answer and is not there."""
    for name in ("background", "conversation", "prompt", "top_logprobs"):
        if body.get(name):
            raise not_there(f'"{name}"')


class _Response(Translator):
    """A response, whole or as a stream of numbered events."""

    def __init__(
        self,
        body: dict[str, Any],
        tools: Tools,
        keep: tuple[Kept, str, list[dict[str, Any]]] | None,
    ) -> None:
        self._body, self._keep = body, keep
        self._pieces, self._output = Pieces(), Output(tools)
        self._id = "resp_" + os.urandom(24).hex()
        self._created = int(time.time())
        self._number = 0
        self._progress = Progress(body)

    def whole(self, ends: list[Event]) -> Any:
        (end,) = ends
        self._body["model"] = self._body["model"] or end.model
        said = answer_of(end)
        self._output.take(said.piece())
        self._output.finish(end.reason == "length", said.calls)
        return self._ended(end)

    @property
    def ping(self) -> bytes:
        """Return an event: to Codex, a comment is no sign of life."""
        told = self._object("in_progress")
        return self._events([{"type": "response.in_progress", "response": told}])

    def begin(self) -> bytes:
        told = self._object("in_progress")
        return self._events(
            [{"type": f"response.{kind}", "response": told} for kind in ("created", "in_progress")]
        )

    def begun(self, number: int, begin: Event) -> None:
        self._body["model"] = self._body["model"] or begin.model
        self._pieces.takes_deltas = begin.deltas
        self._progress.begun(number, begin)

    def feed(self, number: int, event: Event) -> bytes:
        before, told = [], self._progress.of_prompt(number, event)
        if told:
            running = {"type": "response.in_progress", "response": self._object("in_progress")}
            before = [running | told]
        events = self._output.take(self._pieces.of(event))
        if event.event == "eos":
            events += self._output.finish(event.reason == "length", answer_of(event).calls)
            ended = self._ended(event)
            kind = f"response.{ended['status']}"
            events.append({"type": kind, "response": ended, "timings": timings(event)})
        elif events:
            events[-1] |= self._progress.timings(number)
        return self._events(before + events)

    def fail(self, refusal: Refusal) -> bytes:
        error = openai_error(refusal)["error"]
        told = {name: error[name] for name in _TOLD_ERROR if name in error}
        failed = self._object("failed") | {"error": told}
        return self._events([{"type": "response.failed", "response": failed}])

    def _events(self, events: list[dict[str, Any]]) -> bytes:
        out = b""
        for event in events:
            out += sse({**event, "sequence_number": self._number}, "type")
            self._number += 1
        return out

    def _ended(self, end: Event) -> dict[str, Any]:
        told = self._whole(end)
        if self._keep is not None:
            kept, owner, history = self._keep
            said = messages_of({"input": message_of(self._output)})
            kept.put(self._id, owner, Entry.of([*history, *said], told, items_of(self._body)))
        return told

    def _whole(self, end: Event) -> dict[str, Any]:
        cut = self._output.cut_by(end)
        prompt, completion = end.tokens("prompt_tokens"), end.tokens("completion_tokens")
        return self._object("incomplete" if cut else "completed") | {
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self._output.items,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": end.tokens("cached_tokens")},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
            **unread_field(end),
        }

    def _object(self, status: str) -> dict[str, Any]:
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": body["model"],
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "reasoning": {"effort": effort_of(body), "summary": None},
            "store": self._keep is not None,
            "text": {"format": object_of(body, "text").get("format") or {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": "disabled",
            "usage": None,
            "metadata": body.get("metadata") or {},
            **{name: body.get(name) for name in _ECHOED},
        }


_FIELDS = {
    **s.ASKED,
    **s.PROGRESS,
    **s.CONVERSATION,
    "input": {"anyOf": [s.TEXT, {"type": "array", "items": ITEM, "minItems": 1}]},
    "instructions": s.TEXT,
    "previous_response_id": s.TEXT,
    "store": s.FLAG,
    "max_output_tokens": s.AT_LEAST_1,
    "tools": {"type": "array", "items": TOOL},
    "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, s.OBJECT]},
    "parallel_tool_calls": s.FLAG,
    "reasoning": {"type": "object", "properties": {"effort": s.CHAT["reasoning_effort"]}},
    "text": {
        "type": "object",
        "properties": {"format": {"type": "object", "properties": {"type": {"enum": ["text"]}}}},
    },
}
ENDPOINTS = tuple(
    Endpoint("POST", start + "/responses" + end, handler, summary, "OpenAI", _FIELDS, ("input",))
    for start in ("/v1", "")
    for end, handler, summary in (
        ("", responses, "the next items of a conversation"),
        ("/input_tokens", input_tokens, "tokens of a conversation"),
    )
)
