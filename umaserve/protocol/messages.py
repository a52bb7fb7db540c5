"""Messages of clients by type, with the protocol's defaults filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.protocol.constraint import Constraint
from umaserve.protocol.tables.chat_fields import ChatMessage, ChatOptions, ContentPart


class Generate(msgspec.Struct, frozen=True):
    """A request for text.  Exactly one of ``prompt``, ``tokens`` and ``messages`` is set.

    ``parts`` are the texts and pictures of a prompt with pictures, whose text is ``prompt``.
    """

    id: str
    sampling: dict[str, Any]  # as `parse_message` says
    prompt: str | None = None
    parts: tuple[ContentPart, ...] = ()
    tokens: list[int] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    chat: ChatOptions = ChatOptions()  # what goes with ``messages``, and with ``parts``
    constraint: Constraint | None = None
    max_tokens: int | None = None  # None: what the limit and the context leave
    stop: tuple[str, ...] = ()
    stream: bool = True
    priority: str = "auto"
    slo: Any = None  # with the attributes of `umaserve.protocol.tables.settings.SLO_FIELDS`
    session: str | None = None
    cache_prompt: bool = True
    cache_scope: str = "shared"
    speculate: bool = True  # tokens may be drafted for it
    deterministic: bool = False
    lora: tuple[tuple[int, float], ...] = ()  # adapters and their scales; none: the model's
    add_bos: bool | None = None  # None: once
    parse_special: bool = True  # in ``prompt``
    echo: bool = False
    begin: bool = False
    progress: bool = False
    t_max_predict_ms: int = 0  # 0: no limit
    return_tokens: bool = False
    context_shift: bool = False
    n_keep: int = 0  # of the prompt, when its context is shifted; -1: all
    prompt_logprobs: int | None = None  # alternatives of each token of the prompt; None: not told
    model: str | None = None  # None: the default model
    app: str | None = None
    key: str = ""  # the name of the API key that asked, as the gateway tells it
    metadata: msgspec.Raw | None = None  # echoed as it came


class Cancel(msgspec.Struct, frozen=True):
    """Names a request by ``id`` or, where that is given, by ``serial``."""

    id: str | None = None
    serial: int | None = None


class SetPriority(msgspec.Struct, frozen=True):
    """Names a request as ``Cancel`` does."""

    id: str | None
    priority: str
    serial: int | None = None


class Metrics(msgspec.Struct, frozen=True):
    id: str | None = None
    interval_ms: float | None = None  # None: once
    sessions: bool = False


class Load(msgspec.Struct, frozen=True):
    model: str
    id: str | None = None


class Unload(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None


class Info(msgspec.Struct, frozen=True):
    """``template``: with the text of the model's chat template.  ``relays``: the connection asks
    for several programs, which ``key`` and ``app`` of its requests name."""

    id: str | None = None
    template: bool = False
    relays: bool = False
    model: str | None = None


class TokenizeRequest(msgspec.Struct, frozen=True):
    """``several``: the texts came as a list."""

    texts: tuple[str, ...]
    id: str | None = None
    add_special: bool = False
    parse_special: bool = True
    key: str = ""
    several: bool = False
    model: str | None = None
    role: str = ""


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]
    id: str | None = None
    with_pieces: bool = False
    key: str = ""
    model: str | None = None


class Embed(msgspec.Struct, frozen=True):
    """Texts, or lists of token ids, that become vectors."""

    inputs: tuple[str | list[int], ...]
    id: str | None = None
    base64: bool = False
    truncate: bool = False
    key: str = ""
    model: str | None = None


class Rerank(msgspec.Struct, frozen=True):
    """Documents that are ranked by a query; ``top_n`` of them are told, or all."""

    query: str
    documents: tuple[str, ...]
    id: str | None = None
    top_n: int | None = None
    truncate: bool = False
    key: str = ""
    model: str | None = None


class Render(msgspec.Struct, frozen=True):
    """Request for the prompt that a template makes of a conversation."""

    messages: tuple[ChatMessage, ...]
    chat: ChatOptions
    id: str | None = None
    key: str = ""
    model: str | None = None


class AskCache(msgspec.Struct, frozen=True):
    """Request for the contents of the prefix cache, and for the reasons of the last misses."""

    id: str | None = None
    model: str | None = None


class AskModels(msgspec.Struct, frozen=True):
    """Request for the models that can be asked for, and their states."""

    id: str | None = None


class AskAdapters(msgspec.Struct, frozen=True):
    """Request for a model's LoRA adapters.  ``lora``: from now on requests that name none have
    these."""

    id: str | None = None
    model: str | None = None
    lora: tuple[tuple[int, float], ...] | None = None


class Ping(msgspec.Struct, frozen=True):
    id: str | None = None


AdminMessage = (
    Cancel | SetPriority | Metrics | Load | Unload | Info | TokenizeRequest | DetokenizeRequest
    | Embed | Rerank | Render | AskCache | AskModels | AskAdapters | Ping
)  # fmt: skip
Message = Generate | AdminMessage
