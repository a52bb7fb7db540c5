"""Ollama's messages as OpenAI writes them."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.translate.body import list_of, object_of, objects_of
from umaserve.gateway.translate.messages import content_of, parts_of
from umaserve.gateway.translate.pictures import with_data


def as_openai(message: dict[str, Any]) -> dict[str, Any]:
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
