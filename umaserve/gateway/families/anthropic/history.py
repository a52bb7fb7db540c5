"""Anthropic's conversations as OpenAI writes them."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.refusal import wrong
from umaserve.gateway.translate.body import object_of, objects_of
from umaserve.gateway.translate.messages import (
    Content,
    in_order,
    joined,
    part_of,
    parts_of,
    unread_part,
)
from umaserve.gateway.translate.pictures import Part, text_part
from umaserve.protocol.tables.chat_fields import PICTURES

# Claude Code begins its system text with this. It differs from one conversation to the next, so
# none of the thousands of tokens behind it would be found in the cache.
_BILLING = "x-anthropic-billing-header:"


def conversation(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages in OpenAI's words, the system's first.  Raises ``Refusal``."""
    messages = objects_of(body, "messages")
    if not messages:
        raise wrong("messages", "be a list of at least one message")
    system = _system(body.get("system"))
    found: list[dict[str, Any]] = []
    if system:
        found.append({"role": "system", "content": system})
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str):
            raise wrong("messages[].role", "be user or assistant")
        content = message.get("content")
        if content is None or isinstance(content, str):
            found.append({"role": role, "content": content or ""})
        elif role == "assistant":
            found.append(_assistant(_blocks(content, "messages[].content")))
        else:
            found += _user(role, _blocks(content, "messages[].content"))
    return in_order(found)


def _system(content: Any) -> Content:
    if isinstance(content, list):
        content = [block for block in content if not _is_billing(block)]
    return joined(_parts(content, "system"), "\n")


def _is_billing(block: Any) -> bool:
    return isinstance(block, dict) and str(block.get("text")).startswith(_BILLING)


def _blocks(content: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise wrong(name, "be a string or a list of blocks")
    return content


def _parts(content: Any, name: str) -> list[Part]:
    """A content's parts.  Raises ``Refusal`` for what is neither a string nor blocks."""
    if content is None or isinstance(content, str):
        return [text_part(content)] if content else []
    return [part for block in _blocks(content, name) for part in _parts_of(block, name)]


def _parts_of(block: dict[str, Any], name: str) -> list[Part]:
    kind = block.get("type")
    if kind == "document":
        source = object_of(block, "source")
        if source.get("type") == "content":
            return _parts(source.get("content"), name)
        if source.get("type") == "text":
            kind, block = "text", {"type": "text", "text": source.get("data")}
    if kind == "search_result":
        return _parts(block.get("content"), name)
    if kind not in ("text", *PICTURES):
        return [unread_part(kind)]
    return [part_of(block, name)]


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    parts: list[Part] = []
    reasoning, calls = [], []
    for block in blocks:
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block))
            case "thinking":
                reasoning.append(str(block.get("thinking") or ""))
            case "redacted_thinking":
                pass
            case _:
                parts += _parts_of(block, "messages[].content")
    message: dict[str, Any] = {"role": "assistant", "content": joined(parts, "")}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    return {"id": str(block.get("id")), "type": "function", "function": function}


def _user(role: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, and go first."""
    found: list[dict[str, Any]] = []
    said: list[Part] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = joined(_parts(_result(block), "messages[].content[].content"), "\n")
            if block.get("is_error") and isinstance(content, str):
                content = f"Error: {content}"
            elif block.get("is_error"):
                content = [text_part("Error:"), *parts_of(content)]
            name = str(block.get("tool_use_id"))
            found.append({"role": "tool", "tool_call_id": name, "content": content})
        else:
            said += _parts_of(block, "messages[].content")
    if said or not found:
        found.append({"role": role, "content": said})
    return found


def _result(block: dict[str, Any]) -> Any:
    """Return the content of a tool's result; a reference to a tool becomes a sentence."""
    content = block.get("content")
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": f"The tool {each.get('tool_name')} can be called now."}
        if is_reference(each)
        else each
        for each in content
    ]


def is_reference(block: Any) -> bool:
    """Whether a result names a tool that may be called from now on."""
    return isinstance(block, dict) and block.get("type") == "tool_reference"
