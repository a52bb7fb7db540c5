"""Bodies in, typed messages out: ``parse_message`` and the types it returns.

The typed decoding is msgspec's; this module applies the few rules that no type can say.  What
msgspec complains about is put into words by ``umaserve.protocol.mistakes``.

Long: one class for each request, with its fields.
"""

from __future__ import annotations

import codecs
from typing import Any, Protocol

import msgspec

from umaserve.protocol import chat, fields, mistakes
from umaserve.protocol.chat_fields import ChatMessage, ChatOptions
from umaserve.protocol.constraint import Constraint, constraint
from umaserve.protocol.errors import (
    BYTES_A_TOKEN,
    E_LIMIT_001,
    E_PROTO_003,
    Overflow,
    ProtocolError,
)
from umaserve.protocol.mistakes import bounded, missing, wrong


class PromptLimits(Protocol):
    """Anything with these numbers: ``Limits`` of this package or the server's."""

    @property
    def max_prompt_bytes(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def n_ctx(self) -> int: ...


class SamplingOptions(msgspec.Struct, frozen=True):
    """Sampling settings of one request, with the protocol's defaults filled in.

    ``seed`` is ``None`` where the client gave none, else -2**63 .. 2**64 - 1.  ``logprobs`` is -1
    where none were asked for.  A banned token's bias is ``-inf``.
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
    post_sampling_probs: bool


class Slo(msgspec.Struct, frozen=True):
    """Targets of one request in milliseconds; ``latency_cap`` in multiples of the baseline."""

    target_ttft_ms: float | None = None
    target_tbt_ms: float | None = None
    latency_cap: float | None = None


class Generate(msgspec.Struct, frozen=True):
    """A request for text.  Exactly one of ``prompt``, ``tokens`` and ``messages`` is set."""

    id: str
    sampling: SamplingOptions
    prompt: str | None = None
    tokens: list[int] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    chat: ChatOptions = ChatOptions()  # what goes with ``messages``
    constraint: Constraint | None = None
    max_tokens: int | None = None  # None: what the limit and the context leave
    stop: tuple[str, ...] = ()
    stream: bool = True
    priority: str = "auto"
    slo: Slo | None = None
    session: str | None = None
    cache_prompt: bool = True
    cache_scope: str = "shared"
    speculate: bool = True  # tokens may be drafted for it
    deterministic: bool = False
    add_bos: bool | None = None  # None: once
    parse_special: bool = True  # in ``prompt``
    echo: bool = False
    begin: bool = False
    t_max_predict_ms: int = 0  # 0: no limit
    return_tokens: bool = False
    context_shift: bool = False
    n_keep: int = 0  # of the prompt, when its context is shifted; -1: all
    prompt_logprobs: int | None = None  # alternatives of each token of the prompt; None: not told
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


class Info(msgspec.Struct, frozen=True):
    """``template``: with the text of the model's chat template.  ``relays``: the connection asks
    for several programs, which ``key`` and ``app`` of its requests name."""

    id: str | None = None
    template: bool = False
    relays: bool = False


class TokenizeRequest(msgspec.Struct, frozen=True):
    """``several``: the texts came as a list."""

    texts: tuple[str, ...]
    id: str | None = None
    add_special: bool = False
    parse_special: bool = True
    key: str = ""
    several: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]
    id: str | None = None
    with_pieces: bool = False
    key: str = ""


class Embed(msgspec.Struct, frozen=True):
    """Texts, or lists of token ids, that become vectors."""

    inputs: tuple[str | list[int], ...]
    id: str | None = None
    base64: bool = False
    truncate: bool = False
    key: str = ""


class Render(msgspec.Struct, frozen=True):
    """Request for the prompt that a template makes of a conversation."""

    messages: tuple[ChatMessage, ...]
    chat: ChatOptions
    id: str | None = None
    key: str = ""


class AskCache(msgspec.Struct, frozen=True):
    """Request for the contents of the prefix cache, and for the reasons of the last misses."""

    id: str | None = None


class Ping(msgspec.Struct, frozen=True):
    id: str | None = None


AdminMessage = (
    Cancel | SetPriority | Metrics | Load | Unload | Info | TokenizeRequest | DetokenizeRequest
    | Embed | Render | AskCache | Ping
)  # fmt: skip
Message = Generate | AdminMessage


class _Head(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw(b"null")
    event: msgspec.Raw = msgspec.Raw(b"null")


_NULL = b"null"
_WORD_BYTES = 256
_decode_any = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_wire: dict[str, Any] = {
    "generate": msgspec.json.Decoder(fields.WireGenerate).decode,
    **{
        kind: msgspec.json.Decoder(fields.struct_of(f"Wire_{kind}", table)).decode
        for kind, table in fields.ADMIN_FIELDS.items()
    },
}
_DEFAULTS = {f.name: f.default for f in fields.GENERATE_FIELDS}
_SAMPLING = SamplingOptions.__struct_fields__
_TYPES = tuple(fields.ADMIN_FIELDS)


def parse_message(body: bytes, limits: PromptLimits) -> Message:
    """The message in a frame's ``body``.

    Raises ``ProtocolError``.  ``E_PROTO_001`` (closes) is for what is not a JSON object in UTF-8.
    ``E_PROTO_003`` names the field that is missing or wrong.  ``E_LIMIT_001`` is for too long a
    text.  The error's ``id`` is the message's where it was readable.  A byte order mark is skipped.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    kind = _kind(body)
    try:
        wire = _decode_wire[kind](body)
    except msgspec.ValidationError as error:
        raise mistakes.of_field(kind, body, str(error), limits.max_tokens) from None
    except RecursionError as error:
        raise mistakes.of_json(body, error) from None
    try:
        _whole(kind, wire)
        if kind == "generate":
            return _generate(wire, limits)
        return _admin(kind, wire, limits)
    except RecursionError as error:
        raise mistakes.of_json(body, error) from None
    except ProtocolError as error:
        error.id = wire.id
        raise


def _kind(body: bytes) -> str:
    """Which message this is; everything that is wrong with the JSON as such ends here."""
    try:
        body.decode("utf-8")
        head = _decode_head(body)
        kind, event = _word(head.type), _word(head.event)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise mistakes.of_json(body, error) from None
    if kind is None:
        return "cancel" if event == "cancel" else "generate"
    if isinstance(kind, str) and kind in _decode_wire:
        return kind
    refusal = wrong("type", f"one of {', '.join(_TYPES)} (or left out to generate)", kind)
    refusal.id = mistakes.readable_id(body)
    raise refusal


def _word(raw: msgspec.Raw) -> Any:
    """The value; ``...`` where it is none that a word can be."""
    data = bytes(raw)
    if data == _NULL:
        return None
    try:
        return _decode_any(data) if len(data) <= _WORD_BYTES else ...
    except msgspec.ValidationError:  # a number out of range
        return ...


def _whole(kind: str, wire: Any) -> None:
    """Turn whole numbers that were written like ``1.0`` into ints."""
    for name in fields.WHOLE[kind]:
        value = getattr(wire, name)
        if type(value) is float:
            words = fields.WORDS[kind][name]
            if not value.is_integer() or (name == "mirostat" and value not in (0, 2)):
                raise wrong(name, words, value)
            setattr(wire, name, int(value))


def _generate(wire: Any, limits: PromptLimits) -> Generate:
    words = fields.WORDS["generate"]
    if wire.id is None:
        raise missing("id")
    tokens = _tokens(wire)
    prompt, messages, options = (None, None, ChatOptions()) if tokens else _text(wire, limits)
    binding = constraint(wire)
    if binding is not None:
        options = chat.bound(options, binding)
    if wire.max_tokens is not None and not 0 <= wire.max_tokens <= limits.max_tokens:
        raise wrong("max_tokens", bounded(words["max_tokens"], limits.max_tokens), wire.max_tokens)
    if wire.seed is not None and not fields.MIN_SEED <= wire.seed <= fields.MAX_SEED:
        raise wrong("seed", words["seed"], wire.seed)
    slo = wire.slo
    return Generate(
        id=wire.id,
        sampling=_sampling(wire),
        prompt=prompt,
        tokens=tokens,
        messages=messages,
        chat=options,
        constraint=binding,
        max_tokens=wire.max_tokens,
        stop=_stop(wire),
        stream=wire.stream is not False,
        priority=wire.priority or "auto",
        slo=Slo(slo.target_ttft_ms, slo.target_tbt_ms, slo.latency_cap) if slo else None,
        session=wire.session,
        cache_prompt=wire.cache_prompt is not False,
        cache_scope=wire.cache_scope or "shared",
        speculate=wire.speculate is not False,
        deterministic=bool(wire.deterministic),
        add_bos=None if wire.add_bos == "auto" else wire.add_bos,
        parse_special=wire.parse_special is not False,
        echo=bool(wire.echo),
        begin=bool(wire.begin),
        t_max_predict_ms=max(wire.t_max_predict_ms or 0, 0),
        return_tokens=bool(wire.return_tokens),
        context_shift=bool(wire.context_shift),
        n_keep=wire.n_keep or 0,
        prompt_logprobs=wire.prompt_logprobs,
        app=wire.app,
        key=wire.key or "",
        metadata=_metadata(wire.metadata),
    )


def _sampling(wire: Any) -> SamplingOptions:
    """How tokens are chosen; each value that switches a step off has one spelling here."""
    given = {
        name: _DEFAULTS[name] if (value := getattr(wire, name)) is None else value
        for name in _SAMPLING
    }
    for name in ("temperature", "top_k"):
        given[name] = max(given[name], 0)
    if given["dry_base"] < 1:
        given["dry_base"] = _DEFAULTS["dry_base"]
    given["logit_bias"] = _logit_bias(wire.logit_bias)
    given["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
    given["logprobs"] = -1 if wire.logprobs is None else wire.logprobs
    return SamplingOptions(**given)


def _stop(wire: Any) -> tuple[str, ...]:
    given = [wire.stop] if isinstance(wire.stop, str) else wire.stop or ()
    stop = tuple(text for text in given if text)
    if sum(len(text.encode()) + fields.STOP_COST for text in stop) > fields.MAX_STOP_BYTES:
        raise wrong("stop", fields.WORDS["generate"]["stop"], wire.stop)
    return stop


def _tokens(wire: Any) -> list[int] | None:
    """The prompt's ids where it is given so; refuses what does not go with the kind of prompt."""
    for name in ("echo", "prompt_logprobs"):
        is_asked = getattr(wire, name) is not None and getattr(wire, name) is not False
        if is_asked and wire.messages is not None:
            text = f'"{name}" goes with "prompt" or "tokens", not "messages"'
            raise ProtocolError(E_PROTO_003, text)
    for other in ("prompt", "messages"):
        if wire.tokens is not None and getattr(wire, other) is not None:
            text = f'"{other}" and "tokens" are both given; send one of them'
            raise ProtocolError(E_PROTO_003, text)
    return wire.tokens


def _text(
    wire: Any, limits: PromptLimits
) -> tuple[str | None, tuple[ChatMessage, ...] | None, ChatOptions]:
    if wire.prompt is not None and wire.messages is not None:
        raise ProtocolError(E_PROTO_003, '"prompt" and "messages" are both given; send one of them')
    if wire.messages is not None:
        return None, *_conversation(wire, limits)
    if wire.prompt is None:
        text = '"prompt" is missing (or "tokens", or "messages" for a chat)'
        raise ProtocolError(E_PROTO_003, text)
    if not wire.prompt:
        raise wrong("prompt", fields.WORDS["generate"]["prompt"], "")
    _cap("prompt is", len(wire.prompt.encode()), limits)
    for name in chat.given(wire):
        raise ProtocolError(E_PROTO_003, f'"{name}" goes with "messages", not with "prompt"')
    return wire.prompt, None, ChatOptions()


def _conversation(wire: Any, limits: PromptLimits) -> tuple[tuple[ChatMessage, ...], ChatOptions]:
    messages, unread = chat.checked_messages(wire.messages, limits.n_ctx)
    options = chat.options(wire, messages)
    if unread:
        options = msgspec.structs.replace(options, unread=unread)
    _cap(
        "messages and tools are" if wire.tools else "messages are",
        chat.size_of(messages) + (len(options.tools) if wire.tools else 0),
        limits,
    )
    return messages, options


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
            _cap("a text of input is", len(each.encode()), limits)
    return tuple(inputs)


def _cap(what: str, size: int, limits: PromptLimits) -> None:
    if size > limits.max_prompt_bytes:
        text = f"{what} {size} bytes; the limit is {limits.max_prompt_bytes}"
        overflow = Overflow(size // BYTES_A_TOKEN, limits.n_ctx)
        raise ProtocolError(E_LIMIT_001, text, overflow=overflow)


def _logit_bias(raw: msgspec.Raw) -> tuple[tuple[int, float], ...]:
    words = fields.WORDS["generate"]["logit_bias"]
    data = bytes(raw)
    if data == _NULL:
        return ()
    if len(data) > fields.MAX_LOGIT_BIAS_BYTES:
        text = f'"logit_bias" must be {words}, in at most {fields.MAX_LOGIT_BIAS_BYTES} bytes'
        raise ProtocolError(E_PROTO_003, f"{text}; it has {len(data)}")
    try:
        value = _decode_any(data)
    except (msgspec.ValidationError, RecursionError):  # a number out of range, or too deep
        raise wrong("logit_bias", words) from None
    bias = fields.logit_bias(value)
    if bias is None:
        raise wrong("logit_bias", words, value)
    return bias


def _metadata(raw: msgspec.Raw) -> msgspec.Raw | None:
    """A copy; its JSON was checked with the rest of the message."""
    data = bytes(raw)
    if data == _NULL:
        return None
    if len(data) > fields.MAX_METADATA_BYTES:
        words = fields.WORDS["generate"]["metadata"]
        raise ProtocolError(E_PROTO_003, f'"metadata" must be {words}; it has {len(data)}')
    return msgspec.Raw(data)


def _admin(kind: str, wire: Any, limits: PromptLimits) -> AdminMessage:
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
        _cap("text is", sum(len(text.encode()) for text in texts), limits)
        parse = wire.parse_special is not False
        special = bool(wire.add_special)
        return TokenizeRequest(texts, wire.id, special, parse, wire.key or "", several)
    if kind == "render":
        if wire.messages is None:
            raise missing("messages")
        return Render(*_conversation(wire, limits), wire.id, wire.key or "")
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
