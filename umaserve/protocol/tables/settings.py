"""Fields that every HTTP dialect takes too, by these names: how tokens are chosen, how a request is
handled, and what constrains its answer."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from umaserve.protocol.tables.field import Field, choice, flag, number, struct_of, whole

STOP_COST = 64  # bytes that each stop string counts beside its own: each is followed by itself
MAX_STOP_BYTES = 20 * 1024
MAX_LOGIT_BIAS = 1024
MAX_LOGIT_BIAS_BYTES = 64 * 1024
MAX_BREAKERS = 16
MAX_BREAKER_CHARS = 40
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1

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

SAMPLING: tuple[Field, ...] = (
    number("temperature", -10, 10, 0.8, "0 or less = greedy"),
    number("top_p", 0, 1, 0.95, "1 = off, 0 = the likeliest token alone"),
    whole("top_k", -1, 1_000_000, 40, "0 or -1 = off"),
    number("min_p", 0, 1, 0.05, "0 = off"),
    number("typical_p", 0, 1, 1.0, "1 = off"),
    Field("seed", int | float, "a 64-bit whole number", note="omitted: a random one", whole=True),
    number("repeat_penalty", 0, 10, 1.0, "1 = off", open_low=True),
    number("presence_penalty", -10, 10, 0.0, "0 = off"),
    number("frequency_penalty", -10, 10, 0.0, "0 = off"),
    whole("penalty_last_n", -1, 1_000_000, 64, "tokens looked back at; 0 = off, -1 = all"),
    Field("logit_bias", msgspec.Raw, _WORDS_BIAS, note="added to the logits"),
    flag(
        "post_sampling_probs",
        False,
        "`logprobs` are of the tokens that the settings leave, not of all tokens",
    ),
    flag("ignore_eos", False, "go on past the model's end of text"),
    number("xtc_probability", 0, 1, 0.0, "chance that XTC excludes top choices; 0 = off"),
    number("xtc_threshold", 0, 1, 0.1, "least probability of a top choice; above 0.5 = off"),
    number("dry_multiplier", 0, 100, 0.0, "DRY's penalty for going on with a repetition; 0 = off"),
    number("dry_base", 0, 10, 1.75, "what each further token multiplies it by; below 1: default"),
    whole("dry_allowed_length", 0, 1_000_000, 2, "tokens that may repeat freely"),
    whole("dry_penalty_last_n", -1, 1_000_000, 64, "tokens looked back at; 0 = off, -1 = all"),
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
    number("mirostat_tau", 0, 100, 5.0, "surprise aimed at, in bits"),
    number("mirostat_eta", 0, 10, 0.1, "how fast it gets there"),
)

SLO_FIELDS = (
    number("target_ttft_ms", 0, 3_600_000, None, "time to first token", open_low=True),
    number("target_tbt_ms", 0, 3_600_000, None, "time between tokens", open_low=True),
    number("latency_cap", 1, 100, None, "times the baseline"),
)
WireSlo = struct_of("WireSlo", SLO_FIELDS)

MAX_ADAPTERS = 256
LORA_FIELDS = (
    whole("id", 0, MAX_ADAPTERS - 1, 0, "the adapter's number in `info`"),
    number("scale", -100, 100, 0.0, "how much it changes"),
)
WireLora = struct_of("WireLora", LORA_FIELDS)
_LORA: Any = list[WireLora]  # type: ignore[valid-type]
LORA = Field(
    "lora",
    Annotated[_LORA, msgspec.Meta(max_length=MAX_ADAPTERS)],
    f"a list of at most {MAX_ADAPTERS} objects of id and scale",
    note="LoRA adapters; those not named are off; empty: as `adapters` says",
)

HANDLING: tuple[Field, ...] = (
    Field(
        "stop", str | list[str], _WORDS_STOP, note="ends the answer; never part of it; empty = off"
    ),
    Field(
        "slo", WireSlo, "an object of target_ttft_ms, target_tbt_ms and latency_cap", note="targets"
    ),
    Field(
        "add_bos",
        Literal["auto"] | bool,
        '"auto", true or false',
        "auto",
        "the model's start token before the prompt: where it is not there yet, always, never; "
        "`tokens` get one with true alone",
    ),
    flag("parse_special", True, "read the text of special tokens in `prompt` as such"),
    whole(
        "t_max_predict_ms",
        -1,
        86_400_000,
        0,
        "ends the answer so long after its first token, once a line is whole; 0 or -1 = off",
    ),
    flag(
        "context_shift",
        False,
        "a full context does not end the answer: half of the text behind the first `n_keep` tokens "
        "is dropped",
    ),
    whole(
        "n_keep",
        -1,
        2**31 - 1,
        0,
        "tokens of the prompt, behind its start token, that `context_shift` never drops; -1 = all",
    ),
    flag("cache_prompt", True, "false: compute the whole prompt, and keep nothing of it"),
    choice(
        "cache_scope",
        ("shared", "private"),
        "shared",
        "which requests may use its kept text; private: those of the same `session`",
    ),
    Field(
        "speculate",
        Literal["auto"] | bool,
        '"auto", true or false',
        "auto",
        "false: no tokens are drafted for it (`--speculate`)",
    ),
    flag(
        "deterministic",
        False,
        "true: no drafts, no cache, ticks and a context of its own: other requests change none of "
        "its numbers",
    ),
    LORA,
)
# what an answer has to follow; a request has one of them at most
CONSTRAINTS: tuple[Field, ...] = (
    Field(
        "response_format",
        msgspec.Raw,
        'an object: {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "json_schema": {"schema": ...}}',
        note="what the answer is, as OpenAI writes it",
    ),
    Field(
        "json_schema",
        msgspec.Raw,
        "a JSON schema: an object, true or false",
        note="the answer is JSON that this schema allows",
    ),
    Field("regex", str, "a string", note="the whole answer matches it; empty = off"),
    Field("grammar", str, "a string", note="the answer follows it; GBNF; empty = off"),
)
LORA_WORDS = {f"lora[].{field.name}": field.words for field in LORA_FIELDS} | {
    "lora[]": "an object of id and scale"
}
WORDS = {f"slo.{field.name}": field.words for field in SLO_FIELDS} | {
    **LORA_WORDS,
    "stop[]": "a string",
    "dry_sequence_breakers[]": f"a string of 1 to {MAX_BREAKER_CHARS} characters",
}


def adapters(given: Any) -> tuple[tuple[int, float], ...] | None:
    """``lora`` as pairs of a number and a scale; ``None`` where it is left out."""
    if given is None:
        return None
    return tuple((int(each.id or 0), each.scale or 0.0) for each in given)


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
