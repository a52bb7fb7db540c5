"""The fields of a request as one table: name, type and range, default, and the words for both.

The wire structs are made from it, error messages quote it, and ``docs/PROTOCOL.md`` is checked
against it.  Every optional field also takes ``null``, which means its default.

Long: one short class for each kind of field.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from umaserve.protocol import chat_fields, constraint_fields
from umaserve.protocol.field import Field as Field

MAX_ID_CHARS = 128
STOP_COST = 64  # bytes that each stop string counts beside its own: each is followed by itself
MAX_STOP_BYTES = 20 * 1024
MAX_LOGIT_BIAS = 1024
MAX_LOGIT_BIAS_BYTES = 64 * 1024
MAX_PATH_BYTES = 4096
MAX_METADATA_BYTES = 16 * 1024
MAX_LOGPROBS = 20
MAX_BREAKERS = 16
MAX_BREAKER_CHARS = 40
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1

WITHOUT_KEY = "without a key"  # a `key` that no key has as its name, which has no spaces
PRIORITIES = ("interactive", "background")


class Limits(msgspec.Struct, frozen=True):
    """Limits of a request; the server's own limits have the same names and serve as well."""

    max_prompt_bytes: int = 65536
    max_tokens: int = 2048
    n_ctx: int = 0  # tokens of one session


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _number(
    name: str,
    low: float,
    high: float,
    default: float | None,
    note: str = "",
    open_low: bool = False,
) -> Field:
    if open_low:
        meta = msgspec.Meta(gt=low, le=high)
        words = f"above {_plain(low)}, at most {_plain(high)}"
    else:
        meta = msgspec.Meta(ge=low, le=high)
        words = f"from {_plain(low)} to {_plain(high)}"
    kind = Annotated[float, meta]
    return Field(name, kind, f"a number {words}", default, note)


def _whole(name: str, low: int, high: int, default: int | None, note: str = "") -> Field:
    meta = msgspec.Meta(ge=low, le=high)
    kind = Annotated[int, meta] | Annotated[float, meta]
    return Field(name, kind, f"a whole number from {low} to {high}", default, note, whole=True)


def _flag(name: str, default: bool, note: str) -> Field:
    return Field(name, bool, "true or false", default, note)


Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]
_ID_WORDS = f"a string of 1 to {MAX_ID_CHARS} characters"


SLO_FIELDS = (
    _number("target_ttft_ms", 0, 3_600_000, None, "time to first token", open_low=True),
    _number("target_tbt_ms", 0, 3_600_000, None, "time between tokens", open_low=True),
    _number("latency_cap", 1, 100, None, "times the baseline"),
)


def struct_of(name: str, fields: tuple[Field, ...]) -> Any:
    """The type that a message with these fields is decoded to; what is left out is ``None``."""
    return msgspec.defstruct(
        name,
        [
            (f.name, msgspec.Raw, msgspec.Raw(b"null"))
            if f.type is msgspec.Raw
            else (f.name, f.type | None, None)
            for f in fields
        ],
    )


WireSlo = struct_of("WireSlo", SLO_FIELDS)

_WORDS_STOP = (
    f"a string or a list of strings, of at most {MAX_STOP_BYTES} bytes together, where each counts "
    f"{STOP_COST} more"
)
_WORDS_BIAS = (
    'an object {"token id": bias} or a list of [token id, bias] pairs, at most '
    f'{MAX_LOGIT_BIAS}; a bias is a number from -1000 to 1000, or false or "-inf" to ban the token'
)

_Breaker = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_BREAKER_CHARS)]
_WORDS_BREAKERS = (
    f"a list of at most {MAX_BREAKERS} strings, none empty and "
    f"none longer than {MAX_BREAKER_CHARS} characters"
)

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_WORDS_TOKEN = "a token id from 0 to 2147483647"
_WORDS_TOKENS = "a list of token ids from 0 to 2147483647"

MAX_INPUTS = 2048
_WORDS_INPUT = (
    f"a string, a list of token ids, or a list of at most {MAX_INPUTS} of both, none empty"
)

_WORDS_TEXTS = f"a string, or a list of 1 to {MAX_INPUTS} strings"

GENERATE_FIELDS: tuple[Field, ...] = (
    Field("id", Id, _ID_WORDS, note="names the request; unique among those in flight here"),
    Field("prompt", str, "a string that is not empty", note="this, `tokens` or `messages`"),
    Field(
        "tokens",
        Annotated[list[TokenId], msgspec.Meta(min_length=1)],
        f"{_WORDS_TOKENS}, not empty",
        note="the prompt as the model's token ids",
    ),
    chat_fields.MESSAGES,
    *chat_fields.OPTIONS,
    *constraint_fields.FIELDS,
    Field(
        "max_tokens",
        int | float,
        "a whole number from 0 to {max_tokens}",
        note="omitted: what the limit and the context leave; 0: the prompt alone",
        whole=True,
    ),
    _number("temperature", -10, 10, 0.8, "0 or less = greedy"),
    _number("top_p", 0, 1, 0.95, "1 = off, 0 = the likeliest token alone"),
    _whole("top_k", -1, 1_000_000, 40, "0 or -1 = off"),
    _number("min_p", 0, 1, 0.05, "0 = off"),
    _number("typical_p", 0, 1, 1.0, "1 = off"),
    Field("seed", int | float, "a 64-bit whole number", note="omitted: a random one", whole=True),
    Field(
        "stop", str | list[str], _WORDS_STOP, note="ends the answer; never part of it; empty = off"
    ),
    _number("repeat_penalty", 0, 10, 1.0, "1 = off", open_low=True),
    _number("presence_penalty", -10, 10, 0.0, "0 = off"),
    _number("frequency_penalty", -10, 10, 0.0, "0 = off"),
    _whole("penalty_last_n", -1, 1_000_000, 64, "tokens looked back at; 0 = off, -1 = all"),
    Field("logit_bias", msgspec.Raw, _WORDS_BIAS, note="added to the logits"),
    _whole("logprobs", 0, MAX_LOGPROBS, None, "log-probabilities, with so many alternatives"),
    _flag(
        "post_sampling_probs",
        False,
        "`logprobs` are of what the settings leave to choose from, and not of all tokens",
    ),
    _flag("ignore_eos", False, "go on past the model's end of text"),
    _number("xtc_probability", 0, 1, 0.0, "chance that XTC excludes top choices; 0 = off"),
    _number("xtc_threshold", 0, 1, 0.1, "least probability of a top choice; above 0.5 = off"),
    _number("dry_multiplier", 0, 100, 0.0, "DRY's penalty for going on with a repetition; 0 = off"),
    _number("dry_base", 0, 10, 1.75, "what each further token multiplies it by; below 1: default"),
    _whole("dry_allowed_length", 0, 1_000_000, 2, "tokens that may repeat freely"),
    _whole("dry_penalty_last_n", -1, 1_000_000, 64, "tokens looked back at; 0 = off, -1 = all"),
    Field(
        "dry_sequence_breakers",
        Annotated[list[_Breaker], msgspec.Meta(max_length=MAX_BREAKERS)],
        _WORDS_BREAKERS,
        ["\n", ":", '"', "*"],
        "repetitions do not reach back over these",
    ),
    Field(
        "mirostat",
        Literal[0, 2] | float,
        "0 (off) or 2",
        0,
        "2: mirostat v2 alone, but for temperature and logit_bias",
        whole=True,
    ),
    _number("mirostat_tau", 0, 100, 5.0, "surprise aimed at, in bits"),
    _number("mirostat_eta", 0, 10, 0.1, "how fast it gets there"),
    _flag("stream", True, "false: no token events, the text in `eos`"),
    Field(
        "priority",
        Literal["auto", "interactive", "background"],
        '"auto", "interactive" or "background"',
        "auto",
        "the lane; auto: the daemon decides, and may change its mind",
    ),
    Field(
        "slo", WireSlo, "an object of target_ttft_ms, target_tbt_ms and latency_cap", note="targets"
    ),
    Field("session", Id, _ID_WORDS, note="names what belongs together"),
    Field(
        "add_bos",
        Literal["auto"] | bool,
        '"auto", true or false',
        "auto",
        "the model's start token before the prompt: where it is not there yet, always, never; "
        "`tokens` get one with true alone",
    ),
    _flag("parse_special", True, "read the text of special tokens in `prompt` as such"),
    _flag("echo", False, "the prompt's text too, before the answer; not with `messages`"),
    _whole(
        "t_max_predict_ms",
        -1,
        86_400_000,
        0,
        "ends the answer so long after its first token, once a line is whole; 0 or -1 = off",
    ),
    _flag("return_tokens", False, "token ids in `eos` too, where `stream` is false"),
    _flag("begin", False, "an event before the first token: lane, reason, prompt tokens"),
    _whole(
        "prompt_logprobs",
        0,
        MAX_LOGPROBS,
        None,
        "log-probabilities of the prompt's tokens, with so many alternatives; not with `messages`",
    ),
    _flag(
        "context_shift",
        False,
        "a full context does not end the answer: half of what is behind the first `n_keep` tokens "
        "is dropped",
    ),
    _whole(
        "n_keep",
        -1,
        2**31 - 1,
        0,
        "tokens of the prompt, behind its start token, that `context_shift` never drops; -1 = all",
    ),
    Field("app", Id, _ID_WORDS, note="the program that asks; omitted: the connecting process's"),
    Field("key", Id, _ID_WORDS, note="the API key's name that asked; for the gateway to set"),
    _flag("cache_prompt", True, "false: compute the whole prompt, and keep nothing of it"),
    Field(
        "cache_scope",
        Literal["shared", "private"],
        '"shared" or "private"',
        "shared",
        "who may use what is kept of it; private: requests of the same `session` alone",
    ),
    Field(
        "speculate",
        Literal["auto"] | bool,
        '"auto", true or false',
        "auto",
        "false: no tokens are drafted for it (`--speculate`)",
    ),
    _flag(
        "deterministic",
        False,
        "true: no drafts, no cache, and ticks and a context of its own, so that other requests "
        "change none of its numbers",
    ),
    Field(
        "metadata",
        msgspec.Raw,
        f"JSON of at most {MAX_METADATA_BYTES} bytes",
        note="any JSON value; echoed in `eos`",
    ),
)

WireGenerate = struct_of("WireGenerate", GENERATE_FIELDS)

_OPTIONAL_ID = Field("id", Id, _ID_WORDS, note="echoed")
_SERIAL = _whole(
    "serial", 1, 2**53, None, "the request's number in `sessions`; `id` is then only echoed"
)

_OPTIONAL_KEY = Field("key", Id, _ID_WORDS, note="the API key's name that asked")

ADMIN_FIELDS: dict[str, tuple[Field, ...]] = {
    "metrics": (
        _OPTIONAL_ID,
        _number("interval_ms", 50, 3_600_000, None, "one event every interval; omitted: one"),
        _flag("sessions", False, "the running requests and the latest events too"),
    ),
    "cancel": (
        Field("id", Id, _ID_WORDS, note="the request to end"),
        _SERIAL,
    ),
    "priority": (
        Field("id", Id, _ID_WORDS, note="the request to move"),
        _SERIAL,
        Field(
            "priority",
            Literal["interactive", "background"],
            '"interactive" or "background"',
            note="its new lane",
        ),
    ),
    "load": (
        _OPTIONAL_ID,
        Field(
            "model",
            str,
            f"the path of a GGUF file, at most {MAX_PATH_BYTES} bytes long",
            note="absolute, or as the daemon sees it",
        ),
    ),
    "unload": (_OPTIONAL_ID,),
    "info": (
        _OPTIONAL_ID,
        _flag("template", False, "the text of the model's chat template too"),
        _flag("relays", False, "this connection asks for several programs, as the gateway does"),
    ),
    "tokenize": (
        _OPTIONAL_ID,
        Field("text", str | list[str], _WORDS_TEXTS, note="the answer to a list has `counts`"),
        _flag(
            "add_special",
            False,
            "with the tokens that the model puts around a text, once; of a list, around the first",
        ),
        _flag("parse_special", True, "read the text of special tokens as such"),
        _OPTIONAL_KEY,
    ),
    "render": (_OPTIONAL_ID, _OPTIONAL_KEY, chat_fields.MESSAGES, *chat_fields.OPTIONS),
    "detokenize": (
        _OPTIONAL_ID,
        Field("tokens", list[TokenId], _WORDS_TOKENS),
        _flag("with_pieces", False, "the bytes of each token too"),
        _OPTIONAL_KEY,
    ),
    "embed": (
        _OPTIONAL_ID,
        Field("input", str | list[Any], _WORDS_INPUT, note="what becomes vectors"),
        Field("encoding_format", Literal["float", "base64"], '"float" or "base64"', "float", ""),
        _flag("truncate", False, "a text that is too long loses its end"),
        _OPTIONAL_KEY,
    ),
    "cache": (_OPTIONAL_ID,),
    "ping": (_OPTIONAL_ID,),
}

WHOLE: dict[str, tuple[str, ...]] = {
    kind: tuple(f.name for f in table if f.whole)
    for kind, table in {"generate": GENERATE_FIELDS, **ADMIN_FIELDS}.items()
}

WORDS: dict[str, dict[str, str]] = {
    "generate": {f.name: f.words for f in GENERATE_FIELDS}
    | {f"slo.{f.name}": f.words for f in SLO_FIELDS}
    | chat_fields.WORDS
    | {
        "tokens[]": _WORDS_TOKEN,
        "stop[]": "a string",
        "dry_sequence_breakers[]": f"a string of 1 to {MAX_BREAKER_CHARS} characters",
    },
    **{kind: {f.name: f.words for f in fields} for kind, fields in ADMIN_FIELDS.items()},
}
WORDS["render"] |= chat_fields.WORDS
WORDS["detokenize"]["tokens[]"] = _WORDS_TOKEN


def is_token(value: Any) -> bool:
    """Whether it may be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def logit_bias(value: Any) -> tuple[tuple[int, float], ...] | None:
    """``logit_bias`` of a request as ``((token id, bias), ...)``; ``None`` where it is malformed.

    A ban comes out as ``-inf``.
    """
    if isinstance(value, dict):
        pairs: list[Any] = list(value.items())
    elif isinstance(value, list):
        pairs = value
    else:
        return None
    if len(pairs) > MAX_LOGIT_BIAS:
        return None
    out = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return None
        token, bias = pair
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= 10:
            token = int(token)
        if isinstance(token, float) and token.is_integer():
            token = int(token)
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            return None
        if bias is False or bias == "-inf":
            bias = -math.inf
        elif isinstance(bias, bool) or not isinstance(bias, (int, float)) or abs(bias) > 1000:
            return None
        out.append((token, float(bias)))
    return tuple(out)
