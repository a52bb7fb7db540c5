"""Conversations: what no type can say of ``messages`` and of the fields that go with them.

What they become is the model's chat template's business (`umaserve.chat`).  Here their sizes are
checked, and what no template takes is put into words (`umaserve.protocol.history`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umaserve.protocol.constraint import GRAMMAR, Constraint
from umaserve.protocol.errors import E_PROTO_003, ProtocolError, too_long
from umaserve.protocol.history import readable
from umaserve.protocol.mistakes import missing, wrong
from umaserve.protocol.tables import chat_fields as f

_encode = msgspec.json.encode
NO_TOOLS = b"[]"


def checked_messages(
    messages: Sequence[f.ChatMessage], n_ctx: int, sees: bool = False
) -> tuple[tuple[f.ChatMessage, ...], tuple[str, ...]]:
    """The messages as a template can take them, and what of them is unread.

    Raises ``ProtocolError`` where they are none, or too many: clients shorten a conversation that
    is too long for ``n_ctx`` tokens.
    """
    if not messages:
        raise wrong("messages", f.MESSAGES.words, [])
    parts = sum(len(m.content) for m in messages if isinstance(m.content, list))
    calls = sum(len(m.tool_calls or ()) for m in messages)
    for count, most, what in (
        (len(messages), f.MAX_MESSAGES, "messages"),
        (parts, f.MAX_CONTENT_PARTS, "content parts of messages"),
        (calls, f.MAX_TOOL_CALLS, "tool calls of messages"),
    ):
        if count > most:
            text = f"{count} {what} are too many; the limit is {most}"
            raise too_long(text, size_of(messages), n_ctx)
    for i, message in enumerate(messages):
        name, content = f"messages[{i}].content", message.content
        if content is None and message.role not in ("assistant", "tool"):  # these may be cut
            raise missing(name)
        check_parts(content if isinstance(content, list) else (), name)
    return readable(messages, sees)


def size_of(messages: Sequence[f.ChatMessage]) -> int:
    """Bytes of all that is said in the messages."""
    return sum(_size(message) for message in messages)


def check_parts(parts: Sequence[f.ContentPart], name: str) -> None:
    """Raise ``ProtocolError`` where a part of text has none."""
    for i, part in enumerate(parts):
        if part.type == "text" and part.text is None:
            raise missing(f"{name}[{i}].text")


def _size(message: f.ChatMessage) -> int:
    texts = [message.reasoning_content or "", message.name or "", message.tool_call_id or ""]
    if isinstance(message.content, list):
        texts += [part.text or "" for part in message.content]
    else:
        texts.append(message.content or "")
    for call in message.tool_calls or ():
        function = call.function or f.CalledFunction()
        arguments = function.arguments
        texts += [function.name or "", call.id or ""]
        texts.append(arguments if isinstance(arguments, str) else _encode(arguments).decode())
    return sum(len(text.encode()) for text in texts)


def given(wire: Any) -> list[str]:
    """Names of the options that a request has."""
    names = [option.name for option in f.OPTIONS if option.name != "chat_template_kwargs"]
    found = [name for name in names if getattr(wire, name) is not None]
    return found + ["chat_template_kwargs"] * (bytes(wire.chat_template_kwargs) != f.NULL)


def options(wire: Any, messages: Sequence[f.ChatMessage]) -> f.ChatOptions:
    """Return the options sent with the messages.  Raises ``ProtocolError`` naming the mistake."""
    tools = _tools(wire.tools or ())
    thinking = wire.thinking
    if isinstance(thinking, str) and not 0 < len(thinking) <= f.MAX_EFFORT_CHARS:
        raise wrong("thinking", _words("thinking"), thinking)
    budget = wire.thinking_budget
    if budget == -1:
        budget = None
    if budget is not None and not 0 <= budget <= f.MAX_BUDGET:
        raise wrong("thinking_budget", _words("thinking_budget"), budget)
    if budget == 0:
        thinking = False
    last_words = wire.thinking_budget_message or ""
    if len(last_words) > f.MAX_BUDGET_MESSAGE_CHARS:
        raise wrong("thinking_budget_message", _words("thinking_budget_message"), last_words)
    choice = wire.tool_choice or "auto"
    if isinstance(choice, f.NamedTool):
        name = choice.function.name
        tools = [tool for tool in tools if tool.function.name == name]
        if not tools:
            raise ProtocolError(E_PROTO_003, f'"tool_choice" names {name!r}, which is no tool')
        choice = "required"
    elif choice == "required" and not tools:
        raise ProtocolError(E_PROTO_003, '"tool_choice" is "required", and there are no "tools"')
    continues = wire.continue_final_message or False
    if continues and (messages[-1].role != "assistant" or messages[-1].tool_calls):
        text = (
            'the last of "messages" must be the assistant\'s, without tool calls, to be continued'
        )
        raise ProtocolError(E_PROTO_003, text)
    if continues and wire.add_generation_prompt:
        text = '"add_generation_prompt" and "continue_final_message" cannot both be true'
        raise ProtocolError(E_PROTO_003, text)
    return f.ChatOptions(
        tools=msgspec.Raw(_encode(tools)),
        tool_choice=choice,
        parallel_tool_calls=wire.parallel_tool_calls,
        thinking=thinking,
        thinking_budget=budget,
        thinking_budget_message=last_words,
        chat_template_kwargs=_kwargs(wire.chat_template_kwargs),
        continue_final_message=continues,
        add_generation_prompt=wire.add_generation_prompt is not False or bool(continues),
        parsed=bool(tools) or thinking is not None or budget is not None,
        deltas=bool(wire.deltas),
        images=wire.images or "left_out",
    )


def must_call(options: f.ChatOptions) -> bool:
    """Whether an answer has to call a tool."""
    return options.tool_choice == "required"


def bound(options: f.ChatOptions, constraint: Constraint) -> f.ChatOptions:
    """The options of a conversation whose answer follows a constraint, unless it calls a tool.

    Where thoughts are asked for, it binds what follows them; but a grammar binds from the first
    token on.  Else the model does not think, and without tools the answer is not taken apart.
    """
    if must_call(options):
        return options
    calls = bytes(options.tools) != NO_TOOLS and options.tool_choice != "none"
    is_off = options.thinking in (False, "none")
    asks = calls or options.deltas or options.thinking is not None or bool(options.thinking_budget)
    if constraint.kind != GRAMMAR and asks and not is_off:
        return msgspec.structs.replace(options, bound=True)
    if calls:
        return msgspec.structs.replace(options, thinking=False, bound=True)
    return msgspec.structs.replace(options, thinking=False, parsed=False, deltas=False)


def _words(name: str) -> str:
    return next(option.words for option in f.OPTIONS if option.name == name)


def _tools(tools: Sequence[f.Tool]) -> list[f.Tool]:
    if len(tools) > f.MAX_TOOLS:
        text = f'"tools" must be {_words("tools")}; it has {len(tools)}'
        raise ProtocolError(E_PROTO_003, text)
    for i, tool in enumerate(tools):
        schema = bytes(tool.function.parameters)
        if schema != f.NULL and not schema.startswith(b"{"):
            raise wrong(
                f"tools[{i}].function.parameters", f"an object: {tool.function.name}'s JSON schema"
            )
    return [_plain(tool) for tool in tools]


def _plain(tool: f.Tool) -> f.Tool:
    """Without a schema that is ``null``."""
    function = tool.function
    if bytes(function.parameters) == f.NULL:
        function = msgspec.structs.replace(function, parameters=msgspec.Raw(b"{}"))
    return f.Tool(tool.type, function)


def _kwargs(raw: msgspec.Raw) -> msgspec.Raw:
    """A copy; its JSON was checked with the rest of the message."""
    data = bytes(raw)
    if data == f.NULL:
        return msgspec.Raw(b"{}")
    if not data.startswith(b"{") or len(data) > f.MAX_OPTIONS_BYTES:
        raise wrong("chat_template_kwargs", _words("chat_template_kwargs"))
    return msgspec.Raw(data)
