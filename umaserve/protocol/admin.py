"""Admin messages from the structs that their JSON was decoded to."""

from __future__ import annotations

from typing import Any

from umaserve.protocol import fields
from umaserve.protocol.generate import cap, conversation
from umaserve.protocol.limits import PromptLimits
from umaserve.protocol.messages import (
    AdminMessage,
    AskCache,
    Cancel,
    DetokenizeRequest,
    Embed,
    Info,
    Load,
    Metrics,
    Ping,
    Render,
    SetPriority,
    TokenizeRequest,
    Unload,
)
from umaserve.protocol.mistakes import missing, wrong


def admin(kind: str, wire: Any, limits: PromptLimits) -> AdminMessage:
    """Return the message of this kind.  Raises ``ProtocolError``."""
    if kind in ("cancel", "priority") and wire.id is None and wire.serial is None:
        raise missing("id")
    if kind == "cancel":
        return Cancel(wire.id, wire.serial)
    if kind == "priority":
        if wire.priority is None:
            raise missing("priority")
        return SetPriority(wire.id, wire.priority, wire.serial)
    if kind == "metrics":
        return Metrics(wire.id, wire.interval_ms, bool(wire.sessions))
    if kind == "load":
        if wire.model is None:
            raise missing("model")
        size = len(wire.model.encode())
        if not 0 < size <= fields.MAX_PATH_BYTES or "\0" in wire.model:
            raise wrong("model", fields.WORDS["load"]["model"], wire.model)
        return Load(wire.model, wire.id)
    if kind == "tokenize":
        if wire.text is None:
            raise missing("text")
        several = isinstance(wire.text, list)
        texts = tuple(wire.text) if several else (wire.text,)
        if not 0 < len(texts) <= fields.MAX_INPUTS:
            raise wrong("text", fields.WORDS["tokenize"]["text"])
        cap("text is", sum(len(text.encode()) for text in texts), limits)
        parse = wire.parse_special is not False
        special = bool(wire.add_special)
        return TokenizeRequest(texts, wire.id, special, parse, wire.key or "", several)
    if kind == "render":
        if wire.messages is None:
            raise missing("messages")
        return Render(*conversation(wire, limits), wire.id, wire.key or "")
    if kind == "embed":
        inputs = _inputs(wire.input, limits)
        base64, truncate = wire.encoding_format == "base64", bool(wire.truncate)
        return Embed(inputs, wire.id, base64, truncate, wire.key or "")
    if kind == "detokenize":
        if wire.tokens is None:
            raise missing("tokens")
        pieces = bool(wire.with_pieces)
        return DetokenizeRequest(wire.tokens, wire.id, pieces, wire.key or "")
    if kind == "unload":
        return Unload(wire.id)
    if kind == "cache":
        return AskCache(wire.id)
    if kind == "info":
        return Info(wire.id, bool(wire.template), bool(wire.relays))
    return Ping(wire.id)


def _inputs(value: Any, limits: PromptLimits) -> tuple[str | list[int], ...]:
    """Return the texts to embed; a list of ids is one text."""
    if value is None:
        raise missing("input")
    one = isinstance(value, str) or bool(value) and all(fields.is_token(each) for each in value)
    inputs = [value] if one else value
    words = fields.WORDS["embed"]["input"]
    if not 0 < len(inputs) <= fields.MAX_INPUTS:
        raise wrong("input", words)
    for each in inputs:
        tokens = isinstance(each, list) and all(fields.is_token(token) for token in each)
        if not each or not (isinstance(each, str) or tokens):
            raise wrong("input", words, each if isinstance(each, str) else ...)
        if isinstance(each, str):
            cap("a text of input is", len(each.encode()), limits)
    return tuple(inputs)
