"""Roles of models: they generate text, make embeddings of texts, or rank documents."""

from __future__ import annotations

from collections.abc import Iterable

from umaserve.server.requests.service import Service
from umaserve.wire.messages import Ready

CHAT, EMBED, RERANK = "chat", "embed", "rerank"

_DOES = {CHAT: "generates text", EMBED: "makes embeddings", RERANK: "ranks documents"}
_DOES_NOT = {
    CHAT: "generates no text", EMBED: "makes no embeddings", RERANK: "ranks no documents",
}  # fmt: skip
_ONLY = {
    "": "generates text", EMBED: "makes embeddings only (it is an encoder)",
    RERANK: "ranks documents only",
}  # fmt: skip


def does(ready: Ready, what: str) -> bool:
    """Return whether a model has the role; a model that generates makes embeddings too."""
    if what == CHAT:
        return ready.generates
    return (ready.role == RERANK) == (what == RERANK)


def why_not(service: Service, ready: Ready, what: str, services: Iterable[Service]) -> str:
    """Return why a model lacks the role, and the name of a model that has it; else empty."""
    if does(ready, what):
        return ""
    text = f"{service.label} {_ONLY[ready.role]} and {_DOES_NOT[what]}"
    other = next((each.label for each in services if _may(each, what)), "")
    if other:
        return f"{text}; ask for {other}, which {_DOES[what]}"
    return f"{text}; load a model that {_DOES[what]}"


def _may(service: Service, what: str) -> bool:
    if service.engine is not None and service.engine.ready is not None:
        return does(service.engine.ready, what)
    return service.closed is None and service.role == what
