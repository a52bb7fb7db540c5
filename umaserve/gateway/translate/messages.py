"""Conversations as OpenAI writes them, which is how the socket takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.gateway.daemon.refusal import encode, not_there, wrong
from umaserve.gateway.translate.body import list_of, objects_of, whole_of
from umaserve.gateway.translate.pictures import Part, picture_part, text_part
from umaserve.protocol.constraint import NAMES as CONSTRAINTS
from umaserve.protocol.tables.chat_fields import MAX_BUDGET, PICTURES
from umaserve.protocol.tables.chat_fields import TEMPLATE as TEMPLATE_FIELDS

TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
BUDGETS = (
    "reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "thinking_budget",
)  # fmt: skip
LAST_WORDS = ("reasoning_budget_message", "thinking_budget_message")
TEMPLATE = tuple(field.name for field in TEMPLATE_FIELDS)
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def chat_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages, with texts for contents; ``null`` is an empty one.  Raises ``Refusal``."""
    messages = objects_of(body, "messages")
    if not messages:
        raise wrong("messages", "be a list of at least one message")
    return [_message(message) for message in messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    message = {**message, "content": content_of(message.get("content"), "messages[].content")}
    if message.get("tool_calls"):
        calls = objects_of(message, "tool_calls")
        message["tool_calls"] = [_as_function(call) for call in calls]
    return message


def _as_function(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a custom tool as one of a function, whose input is its only argument."""
    custom = call.get("custom")
    if call.get("type") != "custom" or not isinstance(custom, dict):
        return call
    function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    return {"id": call.get("id"), "type": "function", "function": function}


Content = str | list[Part]


def content_of(content: Any, name: str) -> Content:
    """A content, or its parts.  Raises ``Refusal`` for what is neither text nor a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict | str) for part in content):
        raise wrong(name, "be a string or a list of parts")
    return [part_of(part, name) for part in content]


def part_of(part: dict[str, Any] | str, name: str) -> Part:
    """A part of a content as the socket takes it.  Raises ``Refusal``."""
    if isinstance(part, str):
        return text_part(part)
    kind = part.get("type")
    if kind in PICTURES:
        return picture_part(kind, part)
    if kind not in (*TEXT_PARTS, "refusal"):
        return unread_part(kind)
    text = part.get("refusal") if kind == "refusal" else part.get("text")
    if text is not None and not isinstance(text, str):
        raise wrong(f"{name}[].text", "be a string")
    return text_part(text or "")


def unread_part(kind: Any) -> Part:
    """A part of another type, without what it holds: the daemon puts a sentence in its place."""
    return {"type": kind if isinstance(kind, str) else "unknown"}


def in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation in the order that most templates require.

    That is at most one system message, at the start, and no two user messages in a row.  A later
    system message becomes a user message at its place.  Moved to the start, it would change the
    prompt's beginning, and no part of the prompt would be found in the cache.
    """
    start: list[Part] = []
    found: list[dict[str, Any]] = []
    for message in messages:
        is_system = message.get("role") in ("system", "developer")
        if is_system and not found:
            start += parts_of(message["content"])
        elif not is_system and message.get("role") != "user":
            found.append(message)
        elif found and found[-1].get("role") == "user":
            parts = parts_of(found[-1]["content"]) + parts_of(message["content"])
            found[-1] = {**found[-1], "content": parts}
        else:
            found.append({**message, "role": "user"})
    return [{"role": "system", "content": joined(start, "\n\n")}, *found] if start else found


def joined(parts: list[Part], between: str) -> Content:
    """Parts as one text, where all of them are texts."""
    if all("text" in part for part in parts):
        return between.join(part["text"] for part in parts)
    return parts


def parts_of(content: Content) -> list[Part]:
    """A content in parts."""
    return [text_part(content)] if isinstance(content, str) else content


def chat_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Tools, thinking and the template's own settings, where they are given."""
    fields: dict[str, Any] = {}
    tools = list_of(body, "tools")
    if tools and body.get("tool_choice") != "none":
        fields["tools"] = tools
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                fields[name] = body[name]
    if body.get("functions"):
        raise not_there('"functions", for which there is "tools"')
    thinking, name = body.get("reasoning_effort"), "reasoning_effort"
    if thinking in (None, ""):
        reasoning = _reasoning(body)
        thinking, name = reasoning.get("effort", reasoning.get("enabled")), "reasoning.effort"
    if thinking not in (None, ""):
        fields["thinking"] = effort(thinking, name)
    return fields | conversation_fields(body)


def conversation_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields that go with any conversation, by the socket's names.

    The chat template gets some.  A budget of thoughts also has the names of llama-server and
    OpenRouter, with the words that end thoughts which have used it.
    """
    found = {name: body[name] for name in TEMPLATE if body.get(name) is not None}
    words = [body[name] for name in LAST_WORDS if body.get(name)]
    if words:
        found["thinking_budget_message"] = words[0]
    given = [(body, name) for name in BUDGETS] + [(_reasoning(body), "max_tokens")]
    for fields, name in given:
        if fields.get(name) is not None:
            found["thinking_budget"] = whole_of(fields, name, -1, -1, MAX_BUDGET)
            break
    return found


def _reasoning(body: dict[str, Any]) -> dict[str, Any]:
    """Return how a model is to think as OpenRouter's clients write it."""
    value = body.get("reasoning")
    return value if isinstance(value, dict) else {}


def effort(value: Any, name: str) -> bool | str:
    """How much a model is to think.  Raises ``Refusal``."""
    if value == "none":
        return False
    if isinstance(value, bool):
        return value
    if value not in EFFORTS:
        raise wrong(name, f"be one of none, {', '.join(EFFORTS)}")
    return str(value)


def constraint_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields that constrain the answer; the daemon checks them."""
    fields = {name: body[name] for name in CONSTRAINTS if body.get(name) not in (None, "")}
    form = fields.get("response_format")
    if isinstance(form, dict) and form.get("type") == "text":
        del fields["response_format"]
    return fields


def format_field(form: Any, name: str) -> dict[str, Any]:
    """Return the constraint of a format with its schema beside its type.  Raises ``Refusal``."""
    if form is None:
        return {}
    if not isinstance(form, dict):
        raise wrong(name, 'be an object with a "type"')
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": kind}}
    if kind != "json_schema" or form.get("schema") is None:
        raise wrong(name, 'have the type text, json_object, or json_schema with a "schema"')
    return {"json_schema": form["schema"]}


def tool_call(call: dict[str, Any]) -> tuple[str, str, str]:
    """Id, name and arguments of a call in a whole message."""
    function = call.get("function") or call
    value = function.get("arguments")
    arguments = value if isinstance(value, str) else encode(value or {}).decode()
    return str(call.get("id") or ""), str(function.get("name") or ""), arguments
