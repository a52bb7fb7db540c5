"""Conversations as a template can take them: what it could not read stands there in words.

A client sends the whole history with each turn.  One part that was refused would end the
conversation, so each such part becomes a sentence in brackets, and the answer lists its type.
Pictures stay where the model may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from umaserve.picture_size import Size, size_of_base64
from umaserve.protocol.messages import Generate
from umaserve.protocol.tables.chat_fields import (
    PICTURES,
    ROLES,
    CalledFunction,
    ChatMessage,
    ContentPart,
    ToolCall,
)

MAX_TYPE_CHARS = 64  # of a type or a role that is told again
PART = '[Content of the type "{}" stood here; this model cannot read it.]'
PICTURE = "[picture {}left out: {}]"
NO_DATA = "it has no data"
TEXT_ONLY = "this model reads text only"
CALL = '[A tool call of the type "{}" stood here; this model cannot read it.]'
ROLE = '[The role "{}" said what follows; this model does not know that role.]'

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
Content = str | list[ContentPart] | None


def readable(
    messages: Iterable[ChatMessage], sees: bool = False
) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    """The messages with texts for all that is no text, and the types of what these stand for.

    ``sees``: pictures with data stay, for `without_pictures` or for the model.  What an unknown
    role said is the user's, and joins the user's messages beside it: many templates refuse two of
    these in a row.
    """
    found: list[ChatMessage] = []
    unread: list[str] = []
    joins = False
    for message in messages:
        is_known = message.role in ROLES
        read = _readable if is_known else _of_unknown
        text = read(message, unread, sees)
        last = found[-1] if found else None
        if last and last.role == text.role == "user" and (joins or not is_known):
            parts = [*_parts(last.content), *_parts(text.content)]
            found[-1] = msgspec.structs.replace(last, content=parts)
        else:
            found.append(text)
        joins = not is_known
    return tuple(found), tuple(unread)


def readable_parts(
    parts: list[ContentPart], sees: bool = False
) -> tuple[tuple[ContentPart, ...], tuple[str, ...]]:
    """Return `readable` for the parts of a prompt that is no conversation."""
    unread: list[str] = []
    return tuple(_parts(_content(parts, unread, sees))), tuple(unread)


def without_pictures(
    messages: Iterable[ChatMessage], why: str = TEXT_ONLY
) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    """The messages with sentences for pictures that stayed, and the types of these."""
    unread: list[str] = []
    found = with_pictures(messages, lambda part: _left_out(part, why, unread))
    return found, tuple(unread)


def with_pictures(
    messages: Iterable[ChatMessage], put: Callable[[ContentPart], ContentPart]
) -> tuple[ChatMessage, ...]:
    """The messages with what ``put`` returns in place of each picture that stayed, in order."""

    def changed(message: ChatMessage) -> ChatMessage:
        if not isinstance(message.content, list):
            return message
        return msgspec.structs.replace(message, content=parts_with(message.content, put))

    return tuple(changed(message) for message in messages)


def parts_with(
    parts: Iterable[ContentPart], put: Callable[[ContentPart], ContentPart]
) -> list[ContentPart]:
    """The parts with what ``put`` returns in place of each picture, in order."""
    return [put(part) if part.type in PICTURES else part for part in parts]


def marker_part(text: str) -> ContentPart:
    """A part whose text llama.cpp's chat layer keeps apart from the texts around it."""
    return ContentPart("media_marker", text)


def pictures_of(message: Generate) -> list[ContentPart]:
    """The pictures that stayed in a request's conversation or prompt, in order."""
    contents = [each.content for each in message.messages or () if isinstance(each.content, list)]
    parts = [part for content in contents for part in content] + list(message.parts)
    return [part for part in parts if part.type in PICTURES]


def why_left_out(contents: Iterable[Content]) -> str:
    """Reason that the first picture without data has none."""
    parts = (part for content in contents if isinstance(content, list) for part in content)
    unread = (part for part in parts if part.type in PICTURES and not part.data)
    return next((part.why or NO_DATA for part in unread), NO_DATA)


def left_out(part: ContentPart, why: str) -> ContentPart:
    """The sentence for a picture that the model does not get."""
    size = Size(*part.size) if part.size else size_of_base64(part.data or "")
    return _text(PICTURE.format(f"{size} " if size else "", why))


def _left_out(part: ContentPart, why: str, unread: list[str]) -> ContentPart:
    unread.append(part.type)
    return left_out(part, why)


def _readable(message: ChatMessage, unread: list[str], sees: bool) -> ChatMessage:
    content = _content(message.content, unread, sees)
    calls: list[ToolCall] | None = None
    if message.tool_calls:
        calls = [_call(c) for c in message.tool_calls if _is_call(c)]
        others = [c.type[:MAX_TYPE_CHARS] for c in message.tool_calls if not _is_call(c)]
        if others:
            unread += others
            content = [*_parts(content), *(_text(CALL.format(kind)) for kind in others)]
    if content is None and not calls and not message.reasoning_content:
        content = ""
    return msgspec.structs.replace(message, content=content, tool_calls=calls or None)


def _of_unknown(message: ChatMessage, unread: list[str], sees: bool) -> ChatMessage:
    role = message.role[:MAX_TYPE_CHARS]
    unread.append(role)
    said = _readable(message, unread, sees).content
    return ChatMessage("user", [_text(ROLE.format(role)), *_parts(said)])


def _content(content: Content, unread: list[str], sees: bool) -> Content:
    if not isinstance(content, list):
        return content
    found = []
    for part in content:
        if part.type in PICTURES:
            if not (sees and part.data):
                part = _left_out(part, (part.why or NO_DATA) if sees else TEXT_ONLY, unread)
        elif part.type != "text":
            kind = part.type[:MAX_TYPE_CHARS]
            unread.append(kind)
            part = _text(PART.format(kind))
        found.append(part)
    return found


def _is_call(call: ToolCall) -> bool:
    return call.type == "function" and call.function is not None and bool(call.function.name)


def _call(call: ToolCall) -> ToolCall:
    assert call.function is not None
    function = CalledFunction(call.function.name, _arguments(call.function.arguments))
    return msgspec.structs.replace(call, function=function)


def _arguments(given: Any) -> Any:
    """Arguments that are an object, or the JSON of one; what is neither stands in one as text."""
    if given is None or given == "":
        return "{}"
    if isinstance(given, dict):
        return given
    text = given if isinstance(given, str) else _encode(given).decode()
    try:
        is_object = isinstance(_decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    return text if is_object else {"arguments": text}


def _parts(content: Content) -> list[ContentPart]:
    if not content:
        return []
    return [_text(content)] if isinstance(content, str) else content


def _text(text: str) -> ContentPart:
    return ContentPart("text", text)
