"""Requests for text from the structs that their JSON was decoded to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from umaserve.protocol import chat
from umaserve.protocol.constraint import constraint
from umaserve.protocol.errors import E_PROTO_003, ProtocolError, too_long
from umaserve.protocol.history import TEXT_ONLY, readable_parts, why_left_out
from umaserve.protocol.messages import Generate
from umaserve.protocol.mistakes import bounded, missing, wrong
from umaserve.protocol.tables import chat_fields as f
from umaserve.protocol.tables import fields, settings

_SAMPLING = tuple(field.name for field in settings.SAMPLING)
_DEFAULTS = fields.DEFAULTS["generate"]
_NAMED = tuple(name for name in Generate.__struct_fields__ if name in _DEFAULTS)
_decode_any = msgspec.json.Decoder().decode


class Limits(NamedTuple):
    """Bytes of a prompt, of a frame and of a body of HTTP, and tokens that one request may ask for.

    ``n_ctx`` are the tokens that one session holds; 0 = nobody knows yet.  ``max_picture_bytes``
    are those of all pictures of a conversation, as base64; 0 = every model reads text only.
    """

    max_prompt_bytes: int = 64 * 1024
    max_frame_bytes: int = 128 * 1024
    max_tokens: int = 2048
    max_body_bytes: int = 192 * 1024
    n_ctx: int = 0
    max_picture_bytes: int = 0


def generate(wire: Any, limits: Limits) -> Generate:
    """Return the request.  Raises ``ProtocolError``."""
    words = fields.WORDS["generate"]
    if wire.id is None:
        raise missing("id")
    tokens = _tokens(wire)
    form: dict[str, Any] = {} if tokens else _text(wire, limits)
    options = form.get("chat", f.ChatOptions())
    binding = constraint(wire)
    if binding is not None:
        options = chat.bound(options, binding)
    if wire.max_tokens is not None and not 0 <= wire.max_tokens <= limits.max_tokens:
        raise wrong("max_tokens", bounded(words["max_tokens"], limits.max_tokens), wire.max_tokens)
    if wire.seed is not None and not settings.MIN_SEED <= wire.seed <= settings.MAX_SEED:
        raise wrong("seed", words["seed"], wire.seed)
    given = fields.given("generate", wire)
    return Generate(
        **{name: given[name] for name in _NAMED}
        | {
            "sampling": _sampling(wire, given),
            "tokens": tokens,
            **form,
            "chat": options,
            "constraint": binding,
            "stop": _stop(wire),
            "speculate": given["speculate"] is not False,
            "lora": settings.adapters(wire.lora) or (),
            "add_bos": None if given["add_bos"] == "auto" else given["add_bos"],
            "t_max_predict_ms": max(given["t_max_predict_ms"], 0),
            "key": wire.key or "",
            "metadata": _metadata(wire.metadata),
        }
    )


def _sampling(wire: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling settings; each value that switches a step off has one spelling here.

    ``seed`` is ``None`` where the client gave none, else -2**63 .. 2**64 - 1.  ``logprobs`` is -1
    where none were asked for.  A banned token's bias is ``-inf``.
    """
    chosen = {name: given.get(name) for name in _SAMPLING}
    for name in ("temperature", "top_k"):
        chosen[name] = max(given[name], 0)
    if given["dry_base"] < 1:
        chosen["dry_base"] = _DEFAULTS["dry_base"]
    chosen["logit_bias"] = _logit_bias(wire.logit_bias)
    chosen["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
    chosen["logprobs"] = -1 if wire.logprobs is None else wire.logprobs
    return chosen


def _stop(wire: Any) -> tuple[str, ...]:
    given = [wire.stop] if isinstance(wire.stop, str) else wire.stop or ()
    stop = tuple(text for text in given if text)
    if sum(len(text.encode()) + settings.STOP_COST for text in stop) > settings.MAX_STOP_BYTES:
        raise wrong("stop", fields.WORDS["generate"]["stop"], wire.stop)
    return stop


def _tokens(wire: Any) -> list[int] | None:
    """The prompt's ids where it is given so; refuses what does not go with the kind of prompt."""
    for name in ("echo", "prompt_logprobs"):
        is_asked = getattr(wire, name) is not None and getattr(wire, name) is not False
        if is_asked and wire.messages is not None:
            text = f'"{name}" goes with "prompt" or "tokens", not "messages"'
            raise ProtocolError(E_PROTO_003, text)
        if is_asked and isinstance(wire.prompt, list):
            text = f'"{name}" goes with a text as "prompt", not with a list of texts and pictures'
            raise ProtocolError(E_PROTO_003, text)
    for other in ("prompt", "messages"):
        if wire.tokens is not None and getattr(wire, other) is not None:
            text = f'"{other}" and "tokens" are both given; send one of them'
            raise ProtocolError(E_PROTO_003, text)
    return wire.tokens


def _text(wire: Any, limits: Limits) -> dict[str, Any]:
    """The attributes of `Generate` that hold a prompt's text or a conversation."""
    if wire.prompt is not None and wire.messages is not None:
        raise ProtocolError(E_PROTO_003, '"prompt" and "messages" are both given; send one of them')
    if wire.messages is not None:
        messages, options = conversation(wire, limits)
        return {"messages": messages, "chat": options}
    if wire.prompt is None:
        text = '"prompt" is missing (or "tokens", or "messages" for a chat)'
        raise ProtocolError(E_PROTO_003, text)
    if not wire.prompt:
        raise wrong("prompt", fields.WORDS["generate"]["prompt"], wire.prompt)
    is_text = isinstance(wire.prompt, str)
    for name in chat.given(wire):
        if is_text or name != "images":
            raise ProtocolError(E_PROTO_003, f'"{name}" goes with "messages", not with "prompt"')
    form = {"prompt": wire.prompt} if is_text else _parts(wire, limits)
    cap("prompt is", len(form["prompt"].encode()), limits)
    return form


def _parts(wire: Any, limits: Limits) -> dict[str, Any]:
    """The attributes of `Generate` for a prompt of texts and pictures."""
    sees = limits.max_picture_bytes > 0
    chat.check_parts(wire.prompt, "prompt")
    if len(wire.prompt) > f.MAX_CONTENT_PARTS:
        raise wrong("prompt", f"a list of at most {f.MAX_CONTENT_PARTS} texts and pictures")
    parts, unread = readable_parts(wire.prompt, sees)
    options = f.ChatOptions(images=wire.images or "left_out", unread=unread)
    refuse_unread(options, unread, why_left_out([wire.prompt]) if sees else TEXT_ONLY)
    text = "".join(part.text or "" for part in parts)
    has_pictures = any(part.type in f.PICTURES for part in parts)
    if not (text or has_pictures):
        raise wrong("prompt", fields.WORDS["generate"]["prompt"])
    return {"prompt": text, "parts": parts if has_pictures else (), "chat": options}


def conversation(wire: Any, limits: Limits) -> tuple[tuple[f.ChatMessage, ...], f.ChatOptions]:
    """Return the messages and their options.  Raises ``ProtocolError``."""
    sees = limits.max_picture_bytes > 0
    messages, unread = chat.checked_messages(wire.messages, limits.n_ctx, sees)
    options = chat.options(wire, messages)
    contents = (each.content for each in wire.messages)
    refuse_unread(options, unread, why_left_out(contents) if sees else TEXT_ONLY)
    if unread:
        options = msgspec.structs.replace(options, unread=unread)
    cap(
        "messages and tools are" if wire.tools else "messages are",
        chat.size_of(messages) + (len(options.tools) if wire.tools else 0),
        limits,
    )
    return messages, options


def refuse_unread(options: f.ChatOptions, unread: Iterable[str], why: str) -> None:
    """Raise ``E_PROTO_003`` where a picture is left out and the client wants to hear of it."""
    if options.images == "refuse" and any(kind in f.PICTURES for kind in unread):
        text = f'"images" is "refuse", and a picture would be left out: {why}'
        raise ProtocolError(E_PROTO_003, text)


def cap(what: str, size: int, limits: Limits) -> None:
    """Raise ``E_LIMIT_001`` where a prompt has more bytes than the limit."""
    if size > limits.max_prompt_bytes:
        text = f"{what} {size} bytes; the limit is {limits.max_prompt_bytes}"
        raise too_long(text, size, limits.n_ctx)


def _logit_bias(raw: msgspec.Raw) -> tuple[tuple[int, float], ...]:
    words = fields.WORDS["generate"]["logit_bias"]
    data = bytes(raw)
    if data == f.NULL:
        return ()
    if len(data) > settings.MAX_LOGIT_BIAS_BYTES:
        text = f'"logit_bias" must be {words}, in at most {settings.MAX_LOGIT_BIAS_BYTES} bytes'
        raise ProtocolError(E_PROTO_003, f"{text}; it has {len(data)}")
    try:
        value = _decode_any(data)
    except (msgspec.ValidationError, RecursionError):  # a number out of range, or too deep
        raise wrong("logit_bias", words) from None
    bias = settings.logit_bias(value)
    if bias is None:
        raise wrong("logit_bias", words, value)
    return bias


def _metadata(raw: msgspec.Raw) -> msgspec.Raw | None:
    """A copy; its JSON was checked with the rest of the message."""
    data = bytes(raw)
    if data == f.NULL:
        return None
    if len(data) > fields.MAX_METADATA_BYTES:
        words = fields.WORDS["generate"]["metadata"]
        raise ProtocolError(E_PROTO_003, f'"metadata" must be {words}; it has {len(data)}')
    return msgspec.Raw(data)
