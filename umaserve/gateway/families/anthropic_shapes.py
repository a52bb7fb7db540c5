"""Anthropic's conversations as OpenAI writes them, and answers as Anthropic writes those."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, encode, not_there, wrong
from umaserve.gateway.translate.body import object_of, objects_of
from umaserve.gateway.translate.messages import effort, in_order
from umaserve.gateway.translate.parts import Answer

_decode = msgspec.json.Decoder().decode
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
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
        if role not in ("user", "assistant", "system"):
            raise wrong("messages[].role", "be user or assistant")
        content = message.get("content")
        if isinstance(content, str):
            found.append({"role": role, "content": content})
        elif role == "assistant":
            found.append(_assistant(_blocks(content)))
        else:
            found += _user(role, _blocks(content))
    return in_order(found)


def _system(content: Any) -> str:
    if isinstance(content, list):
        content = [block for block in content if not _is_billing(block)]
    return text_blocks(content, "system")


def _is_billing(block: Any) -> bool:
    return isinstance(block, dict) and str(block.get("text")).startswith(_BILLING)


def _blocks(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise wrong("messages[].content", "be a string or a list of blocks")
    return content


def text_blocks(content: Any, name: str) -> str:
    """The text of a string or of text blocks.  Raises ``Refusal`` for any other block."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise wrong(name, "be a string or a list of blocks")
    return "\n".join(_text(block, name) for block in content)


def _text(block: dict[str, Any], name: str) -> str:
    kind, text = block.get("type"), block.get("text")
    if kind == "document":
        source = object_of(block, "source")
        kind, text = source.get("type"), source.get("data")
    if kind != "text":
        raise Refusal(400, "text_only", f'"{name}" has a block that is no text; only text is taken')
    if not isinstance(text, str):
        raise wrong(f"{name}[].text", "be a string")
    return text


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    texts, reasoning, calls = [], [], []
    for block in blocks:
        match block.get("type"):
            case "tool_use":
                arguments = encode(block.get("input") or {}).decode()
                calls.append(_call(block, arguments))
            case "thinking":
                reasoning.append(str(block.get("thinking") or ""))
            case "redacted_thinking":
                pass
            case _:
                texts.append(_text(block, "messages[].content"))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: dict[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": str(block.get("name")), "arguments": arguments}
    return {"id": str(block.get("id")), "type": "function", "function": function}


def _user(role: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, and go first."""
    found: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text = text_blocks(_result(block), "messages[].content[].content")
            if block.get("is_error"):
                text = f"Error: {text}"
            name = str(block.get("tool_use_id"))
            found.append({"role": "tool", "tool_call_id": name, "content": text})
        else:
            texts.append({"type": "text", "text": _text(block, "messages[].content")})
    if texts:
        found.append({"role": role, "content": texts})
    return found


def _result(block: dict[str, Any]) -> Any:
    """What a tool gave; a tool that it names becomes a sentence."""
    content = block.get("content")
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": f"The tool {each.get('tool_name')} can be called now."}
        if _is_reference(each)
        else each
        for each in content
    ]


def _is_reference(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_reference"


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
                if _is_reference(part):
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
    """Whether the model is to think, where that is said."""
    kind = object_of(body, "thinking").get("type")
    if kind is None:
        return {}
    if kind not in ("enabled", "disabled", "adaptive"):
        raise wrong("thinking.type", "be enabled, adaptive or disabled")
    if kind == "disabled":
        return {"thinking": False}
    wanted = object_of(body, "output_config").get("effort")
    return {"thinking": True if wanted is None else effort(wanted, "output_config.effort")}


def no_thread(body: dict[str, Any]) -> None:
    """Raises ``Refusal`` where we are to know what was said before.

    In words at which the tool runner of Anthropic's package sends the whole conversation.
    """
    if body.get("thread") is not None:
        code = "thread_unsupported_request"
        text = '"thread": no conversation is kept here; send all its messages'
        details = {"error_code": code, "unsupported": ["thread"]}
        raise Refusal(400, code, text, details=details)


def no_schema(body: dict[str, Any]) -> None:
    """Raises ``Refusal`` where the answer is to follow a schema."""
    if body.get("output_format") or object_of(body, "output_config").get("format"):
        raise not_there("a format of the output")


def stop_reason(event: Event, called: bool) -> str:
    """Why it ended, in Anthropic's words."""
    if called:
        return "tool_use"
    if event.stop is not None:
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
    """The content of a whole answer."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text or not answer.calls:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        value = input_of(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": value})
    return blocks


def input_of(arguments: str) -> Any:
    """A call's arguments as an object; what is none stands in one, so that nothing is lost."""
    try:
        value = _decode(arguments or "{}")
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
