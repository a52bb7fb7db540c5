"""Bodies in, typed messages out: ``parse_message`` and the types it returns.

The typed decoding is msgspec's; this module turns its complaints into sentences that name the field
in a client's words, and applies the few rules that no type can say.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

from umaserve.protocol import fields
from umaserve.protocol.errors import E_LIMIT_001, E_PROTO_001, E_PROTO_003, ProtocolError


class PromptLimits(Protocol):
    """Anything with these two numbers: ``Limits``, or the server's ``Config``."""

    @property
    def max_prompt_bytes(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...


class SamplingOptions(msgspec.Struct, frozen=True):
    """Sampling settings of one request, with the protocol's defaults filled in.

    ``seed`` is ``None`` where the client gave none (else -2**63 .. 2**64 - 1); ``logprobs`` is -1
    where none were asked for; a banned token's bias is ``-inf``.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    logprobs: int
    ignore_eos: bool
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation; text parts are joined."""

    role: str
    content: str


class Slo(msgspec.Struct, frozen=True):
    """Targets of one request in milliseconds; ``latency_cap`` in multiples of the baseline."""

    target_ttft_ms: float | None = None
    target_tbt_ms: float | None = None
    latency_cap: float | None = None


class Generate(msgspec.Struct, frozen=True):
    """A request for text.  Exactly one of ``prompt`` and ``messages`` is set."""

    id: str
    sampling: SamplingOptions
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    max_tokens: int | None = None  # None: what the limit and the context leave
    stop: tuple[str, ...] = ()
    stream: bool = True
    priority: str = "interactive"
    slo: Slo | None = None
    session: str | None = None
    cache_prompt: bool = True
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


class Info(msgspec.Struct, frozen=True):
    id: str | None = None


class TokenizeRequest(msgspec.Struct, frozen=True):
    text: str
    id: str | None = None
    add_special: bool = False
    parse_special: bool = True


class Ping(msgspec.Struct, frozen=True):
    id: str | None = None


Message = Generate | Cancel | SetPriority | Metrics | Load | Unload | Info | TokenizeRequest | Ping


class _Head(msgspec.Struct):
    type: Any = None
    event: Any = None


_TOO_DEEP = "the JSON is nested too deeply"
_RAW_NONE = (b"", b"null")
_PATH = re.compile(r"`\$\.?([^`]*)`$")
_REQUIRED = re.compile(r"missing required field `(\w+)`")
_decode_any = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_wire: dict[str, Any] = {
    "generate": msgspec.json.Decoder(fields.WireGenerate).decode,
    **{
        kind: msgspec.json.Decoder(
            msgspec.defstruct(f"Wire_{kind}", [(f.name, f.type | None, None) for f in table])
        ).decode
        for kind, table in fields.ADMIN_FIELDS.items()
    },
}
_DEFAULTS = {f.name: f.default for f in fields.GENERATE_FIELDS}
_SAMPLING = SamplingOptions.__struct_fields__
_TYPES = tuple(fields.ADMIN_FIELDS)


def parse_message(body: bytes, limits: PromptLimits) -> Message:
    """The message in a frame's ``body``.

    Raises ``ProtocolError``: ``E_PROTO_001`` (closes) for what is not a JSON object in UTF-8,
    ``E_PROTO_003`` naming the field that is missing or wrong, ``E_LIMIT_001`` for too long a text.
    Its ``id`` is the message's where that was readable.
    """
    kind = _kind(body)
    try:
        wire = _decode_wire[kind](body)
    except msgspec.ValidationError as error:
        raise _field_error(kind, body, str(error), limits) from None
    except RecursionError:
        raise ProtocolError(E_PROTO_001, _TOO_DEEP) from None
    try:
        if kind == "generate":
            return _generate(wire, limits)
        return _admin(kind, wire, limits)
    except ProtocolError as error:
        error.id = wire.id
        raise


def _kind(body: bytes) -> str:
    """Which message this is; everything that is wrong with the JSON as such ends here."""
    try:
        body.decode("utf-8")
        head = _decode_head(body)
    except UnicodeDecodeError as error:
        raise ProtocolError(E_PROTO_001, f"not UTF-8: {error.reason}") from None
    except RecursionError:
        raise ProtocolError(E_PROTO_001, _TOO_DEEP) from None
    except msgspec.ValidationError as error:
        found = re.match(r"Expected `object`, got `(\w+)`", str(error))
        if found:
            text = f"a message must be a JSON object; this is of type {found[1]}"
            raise ProtocolError(E_PROTO_001, text) from None
        raise ProtocolError(E_PROTO_003, f"a number is out of range: {error}") from None
    except msgspec.DecodeError as error:
        text = f"not valid JSON: {error}"
        if "\\ud" in body.decode("utf-8").lower():
            text += " (a surrogate escape without its other half is not valid)"
        raise ProtocolError(E_PROTO_001, text) from None
    kind = head.type
    if kind is None:
        return "cancel" if head.event == "cancel" else "generate"
    if isinstance(kind, str) and kind in _decode_wire:
        return kind
    raise ProtocolError(
        E_PROTO_003,
        f'"type" must be one of {", ".join(_TYPES)} (or left out to generate), not {_show(kind)}',
        id=_readable_id(body),
    )


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:37]}..."


def _readable_id(body: bytes) -> str | None:
    try:
        raw = _decode_any(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    value = raw.get("id")
    if isinstance(value, str) and 1 <= len(value) <= fields.MAX_ID_CHARS:
        return value
    return None


def _wrong(name: str, words: str, value: Any = ...) -> ProtocolError:
    shown = "" if value is ... else f", not {_show(value)}"
    return ProtocolError(E_PROTO_003, f'"{name}" must be {words}{shown}')


def _missing(name: str) -> ProtocolError:
    return ProtocolError(E_PROTO_003, f'"{name}" is missing')


def _field_error(kind: str, body: bytes, complaint: str, limits: PromptLimits) -> ProtocolError:
    """``msgspec``'s complaint about a field, in the words of the field table."""
    at = _PATH.search(complaint)
    name = at[1].strip() if at else ""
    table = fields.WORDS[kind]
    required = _REQUIRED.search(complaint)
    if required:
        full = f"{name}.{required[1]}" if name else required[1]
        error = _missing(full)
    else:
        key = re.sub(r"\[[^\]]*\]", "[]", name)
        words = table.get(key) or table.get(key.split(".")[0].split("[")[0], "valid")
        error = _wrong(name, _bounded(words, limits), _value_at(body, name))
    error.id = _readable_id(body)
    return error


def _bounded(words: str, limits: PromptLimits) -> str:
    return words.replace("{max_tokens}", str(limits.max_tokens))


def _value_at(body: bytes, path: str) -> Any:
    """The value that ``path`` (``slo.latency_cap``, ``stop[2]``) names, ``...`` if unreadable."""
    try:
        value = _decode_any(body)
        for step in re.findall(r"\w+", path):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError, ValueError, TypeError):
        return ...
    return value


def _generate(wire: Any, limits: PromptLimits) -> Generate:
    words = fields.WORDS["generate"]
    if wire.id is None:
        raise _missing("id")
    prompt, messages = _text(wire, limits)
    if wire.max_tokens is not None and not 1 <= wire.max_tokens <= limits.max_tokens:
        raise _wrong("max_tokens", _bounded(words["max_tokens"], limits), wire.max_tokens)
    if wire.seed is not None and not fields.MIN_SEED <= wire.seed <= fields.MAX_SEED:
        raise _wrong("seed", words["seed"], wire.seed)
    stop = (wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ())
    if len(stop) > fields.MAX_STOPS or not all(
        0 < len(s.encode()) <= fields.MAX_STOP_BYTES for s in stop
    ):
        raise _wrong("stop", words["stop"], wire.stop)
    bias = fields.logit_bias(wire.logit_bias) if wire.logit_bias is not None else ()
    if bias is None:
        raise _wrong("logit_bias", words["logit_bias"], wire.logit_bias)
    given = {
        name: _DEFAULTS[name] if (value := getattr(wire, name)) is None else value
        for name in _SAMPLING
    }
    given["logit_bias"] = bias
    given["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
    given["logprobs"] = -1 if wire.logprobs is None else wire.logprobs
    slo = wire.slo
    return Generate(
        id=wire.id,
        sampling=SamplingOptions(**given),
        prompt=prompt,
        messages=messages,
        max_tokens=wire.max_tokens,
        stop=stop,
        stream=wire.stream is not False,
        priority=wire.priority or "interactive",
        slo=Slo(slo.target_ttft_ms, slo.target_tbt_ms, slo.latency_cap) if slo else None,
        session=wire.session,
        cache_prompt=wire.cache_prompt is not False,
        metadata=_metadata(wire.metadata),
    )


def _text(wire: Any, limits: PromptLimits) -> tuple[str | None, tuple[ChatMessage, ...] | None]:
    if wire.prompt is not None and wire.messages is not None:
        raise ProtocolError(E_PROTO_003, '"prompt" and "messages" are both given; send one of them')
    if wire.messages is not None:
        if not wire.messages:
            raise _wrong("messages", fields.WORDS["generate"]["messages"], [])
        messages = tuple(
            ChatMessage(m.role, m.content if isinstance(m.content, str) else _join(m.content))
            for m in wire.messages
        )
        _cap("messages are", sum(len(m.content.encode()) for m in messages), limits)
        return None, messages
    if wire.prompt is None:
        raise ProtocolError(E_PROTO_003, '"prompt" is missing (or "messages" for a chat)')
    if not wire.prompt:
        raise _wrong("prompt", fields.WORDS["generate"]["prompt"], "")
    _cap("prompt is", len(wire.prompt.encode()), limits)
    return wire.prompt, None


def _join(parts: list[fields.TextPart]) -> str:
    return "".join(part.text for part in parts)


def _cap(what: str, size: int, limits: PromptLimits) -> None:
    if size > limits.max_prompt_bytes:
        text = f"{what} {size} bytes; the limit is {limits.max_prompt_bytes}"
        raise ProtocolError(E_LIMIT_001, text)


def _metadata(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Checked and copied: msgspec skips over a raw value without looking inside its strings."""
    data = bytes(raw)
    if data in _RAW_NONE:
        return None
    if len(data) > fields.MAX_METADATA_BYTES:
        words = fields.WORDS["generate"]["metadata"]
        raise ProtocolError(E_PROTO_003, f'"metadata" must be {words}; it has {len(data)}')
    try:
        _decode_any(data)
    except (msgspec.DecodeError, RecursionError):
        raise _wrong("metadata", "valid JSON") from None
    return msgspec.Raw(data)


def _admin(kind: str, wire: Any, limits: PromptLimits) -> Message:
    if kind in ("cancel", "priority") and wire.id is None and wire.serial is None:
        raise _missing("id")
    if kind == "cancel":
        return Cancel(wire.id, wire.serial)
    if kind == "priority":
        if wire.priority is None:
            raise _missing("priority")
        return SetPriority(wire.id, wire.priority, wire.serial)
    if kind == "metrics":
        return Metrics(wire.id, wire.interval_ms, bool(wire.sessions))
    if kind == "load":
        if wire.model is None:
            raise _missing("model")
        if not wire.model or "\0" in wire.model:
            raise _wrong("model", fields.WORDS["load"]["model"], wire.model)
        return Load(wire.model, wire.id)
    if kind == "tokenize":
        if wire.text is None:
            raise _missing("text")
        _cap("text is", len(wire.text.encode()), limits)
        parse = wire.parse_special is not False
        return TokenizeRequest(wire.text, wire.id, bool(wire.add_special), parse)
    if kind == "unload":
        return Unload(wire.id)
    return Info(wire.id) if kind == "info" else Ping(wire.id)
