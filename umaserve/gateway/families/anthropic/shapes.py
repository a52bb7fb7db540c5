"""Anthropic's tools and choices as OpenAI writes them, and answers as Anthropic writes those."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.gateway.daemon.event import Event, decode_any
from umaserve.gateway.daemon.refusal import Refusal, not_there, wrong
from umaserve.gateway.families.anthropic.history import is_reference
from umaserve.gateway.translate.answers.parts import Answer
from umaserve.gateway.translate.body import object_of, objects_of, whole_of
from umaserve.gateway.translate.messages import MAX_BUDGET, effort, format_field
from umaserve.gateway.translate.schemas import FLAG, OBJECT, TEXT

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _block(kind: str, **properties: Any) -> dict[str, Any]:
    named = {"type": {"enum": [kind]}, **properties}
    return {"type": "object", "properties": named, "required": ["type", *properties]}


# what the OpenAPI document says of a message, its blocks, a tool and the choice among them
TEXT_BLOCK = _block("text", text=TEXT)
_RESULT = {"anyOf": [TEXT, {"type": "array", "items": TEXT_BLOCK}]}
_BLOCKS = [
    TEXT_BLOCK,
    _block("document", source=_block("text", data=TEXT)),
    _block("thinking", thinking=TEXT),
    _block("tool_use", id=TEXT, name=TEXT, input=OBJECT),
    _block("tool_result", tool_use_id=TEXT, content=_RESULT),
]
MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["user", "assistant"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": _BLOCKS}}]},
    },
    "required": ["role", "content"],
}
TOOL = {
    "type": "object",
    "properties": {"name": TEXT, "description": TEXT, "input_schema": OBJECT},
    "required": ["name", "input_schema"],
}
TOOL_CHOICE = {
    "type": "object",
    "properties": {
        "type": {"enum": [*_CHOICES, "tool"]}, "name": TEXT, "disable_parallel_tool_use": FLAG,
    },
}  # fmt: skip


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that the model is told of: not those that wait until a result names them.

    These come last, so that what goes before them stays as it was.
    """
    named: dict[Any, None] = {}
    for message in objects_of(body, "messages"):
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            parts = block.get("content") if isinstance(block, dict) else None
            for part in parts if isinstance(parts, list) else ():
                if is_reference(part):
                    named[part.get("tool_name")] = None
    tools = objects_of(body, "tools")
    waiting = {tool.get("name"): tool for tool in tools if tool.get("defer_loading") is True}
    told = [tool for tool in tools if tool.get("defer_loading") is not True]
    return told + [waiting[name] for name in named if name in waiting]


def tool_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Tools and the choice among them, in OpenAI's words.  Raises ``Refusal``."""
    tools = _tools(body)
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    choice = object_of(body, "tool_choice")
    kind = choice.get("type")
    if kind == "none":
        return {}
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    elif kind is not None:
        raise wrong("tool_choice.type", "be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:  # one that Anthropic's servers run themselves
        raise not_there(f'a tool of the type "{tool.get("type")}"')
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def thinking_field(body: dict[str, Any]) -> dict[str, Any]:
    """Whether the model is to think, where that is said, and for how long."""
    kind = object_of(body, "thinking").get("type")
    if kind is None:
        return {}
    if kind not in ("enabled", "disabled", "adaptive"):
        raise wrong("thinking.type", "be enabled, adaptive or disabled")
    if kind == "disabled":
        return {"thinking": False}
    wanted = object_of(body, "output_config").get("effort")
    thinking = True if wanted is None else effort(wanted, "output_config.effort")
    budget = whole_of(object_of(body, "thinking"), "budget_tokens", -1, -1, MAX_BUDGET)
    return {"thinking": thinking} | ({} if budget == -1 else {"thinking_budget": budget})


def no_thread(body: dict[str, Any]) -> None:
    """Raises ``Refusal`` where we are to know what was said before.

    In words at which the tool runner of Anthropic's package sends the whole conversation.
    """
    if body.get("thread") is not None:
        code = "thread_unsupported_request"
        text = '"thread": no conversation is kept here; send all its messages'
        details = {"error_code": code, "unsupported": ["thread"]}
        raise Refusal(400, code, text, details=details)


def schema_field(body: dict[str, Any]) -> dict[str, Any]:
    """Return the field for the answer's schema; empty where the body has none."""
    form = object_of(body, "output_config").get("format")
    if form is not None:
        return format_field(form, "output_config.format")
    return format_field(body.get("output_format"), "output_format")


def stop_reason(event: Event) -> str:
    """Why it ended, in Anthropic's words."""
    if event.stop is not None and event.reason == "stop":
        return "stop_sequence"
    return _REASONS.get(event.reason, "end_turn")


def usage(event: Event) -> dict[str, int]:
    """Counts of tokens; what was cached is no input here."""
    cached = event.tokens("cached_tokens")
    return {
        "input_tokens": event.tokens("prompt_tokens") - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": event.tokens("completion_tokens"),
    }


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    """The content of a whole answer; what of a call was cut is no object, and left out."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text or not answer.whole_calls:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.whole_calls:
        value = input_of(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": value})
    return blocks


def input_of(arguments: str) -> Any:
    """A call's arguments as an object; what is none stands in one, so that nothing is lost."""
    try:
        value = decode_any(arguments or "{}")
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
