"""Admin messages from the structs that their JSON was decoded to."""

from __future__ import annotations

from typing import Any

from umaserve.protocol import messages as m
from umaserve.protocol.generate import Limits, cap, conversation
from umaserve.protocol.mistakes import missing, wrong
from umaserve.protocol.tables import fields, settings

# decoded to the fields of their type
_PLAIN: dict[str, Any] = {
    "cancel": m.Cancel, "priority": m.SetPriority, "metrics": m.Metrics, "load": m.Load,
    "unload": m.Unload, "info": m.Info, "detokenize": m.DetokenizeRequest, "cache": m.AskCache,
    "models": m.AskModels, "ping": m.Ping,
}  # fmt: skip
_REQUIRED = {
    "priority": "priority", "load": "model", "tokenize": "text", "render": "messages",
    "detokenize": "tokens", "embed": "input", "rerank": "query",
}  # fmt: skip


def admin(kind: str, wire: Any, limits: Limits) -> m.AdminMessage:
    """Return the message of this kind.  Raises ``ProtocolError``."""
    given = fields.given(kind, wire)
    if kind in ("cancel", "priority") and wire.id is None and wire.serial is None:
        raise missing("id")
    if kind in _REQUIRED and given[_REQUIRED[kind]] is None:
        raise missing(_REQUIRED[kind])
    if kind == "load":
        size = len(wire.model.encode())
        if not 0 < size <= fields.MAX_PATH_BYTES or "\0" in wire.model:
            raise wrong("model", fields.WORDS["load"]["model"], wire.model)
    if kind in _PLAIN:
        message: m.AdminMessage = _PLAIN[kind](**given)
        return message
    if kind == "adapters":
        return m.AskAdapters(wire.id, wire.model, settings.adapters(wire.lora))
    if kind == "tokenize":
        text = given.pop("text")
        several = isinstance(text, list)
        texts = tuple(text) if several else (text,)
        if not 0 < len(texts) <= fields.MAX_INPUTS:
            raise wrong("text", fields.WORDS["tokenize"]["text"])
        cap("text is", sum(len(text.encode()) for text in texts), limits)
        return m.TokenizeRequest(texts, several=several, **given)
    if kind == "render":
        return m.Render(*conversation(wire, limits), wire.id, given["key"], wire.model)
    if kind == "rerank":
        return _rerank(given, limits)
    base64 = given["encoding_format"] == "base64"
    return m.Embed(
        _inputs(wire.input, limits), wire.id, base64, given["truncate"], given["key"], wire.model
    )


def _rerank(given: dict[str, Any], limits: Limits) -> m.Rerank:
    documents = given.pop("documents")
    if documents is None:
        raise missing("documents")
    if not 0 < len(documents) <= fields.MAX_INPUTS:
        raise wrong("documents", fields.WORDS["rerank"]["documents"])
    query = len(given["query"].encode())
    cap("query is", query, limits)
    for each in documents:
        cap("query and a document are", query + len(each.encode()), limits)
    return m.Rerank(documents=tuple(documents), **given)


def _inputs(value: Any, limits: Limits) -> tuple[str | list[int], ...]:
    """Return the texts to embed; a list of ids is one text."""
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
