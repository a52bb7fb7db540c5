"""The fields of each message: name, type and range, default, and the words for both.

`settings` has the fields that every HTTP dialect takes too, by these names.  The types that JSON is
decoded to are made from the tables, and error messages quote them.  ``python -m
tools.field_tables`` writes the tables of ``docs/PROTOCOL.md`` and the client's options from them.
Every optional field also takes ``null``, which means its default.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from umaserve.protocol.tables import chat_fields, settings
from umaserve.protocol.tables.field import Field, choice, flag, number, whole

MAX_ID_CHARS = 128
MAX_PATH_BYTES = 4096
MAX_METADATA_BYTES = 16 * 1024
MAX_LOGPROBS = 20

WITHOUT_KEY = "without a key"  # a `key` that no key has as its name, which has no spaces


Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]
_ID_WORDS = f"a string of 1 to {MAX_ID_CHARS} characters"
_Name = Annotated[str, msgspec.Meta(max_length=MAX_PATH_BYTES)]
_NAME_WORDS = f"a string of at most {MAX_PATH_BYTES} characters"
_MODEL = Field("model", _Name, _NAME_WORDS, note="a name of `info`; others: the default model")
_LOADED = Field("model", _Name, _NAME_WORDS, note="a name of `info`; omitted: the default model")

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_WORDS_TOKEN = "a token id from 0 to 2147483647"
_WORDS_TOKENS = "a list of token ids from 0 to 2147483647"

MAX_INPUTS = 2048
_WORDS_INPUT = (
    f"a string, a list of token ids, or a list of at most {MAX_INPUTS} of both, none empty"
)

_WORDS_DOCUMENTS = f"a list of 1 to {MAX_INPUTS} strings"
_DOES_THIS = "by the model that does this, where `model` names none"
_ROLE = choice("role", ("embed", "rerank"), "", _DOES_THIS)
_WORDS_TEXTS = f"a string, or a list of 1 to {MAX_INPUTS} strings"

GENERATE_FIELDS: tuple[Field, ...] = (
    Field("id", Id, _ID_WORDS, note="names the request; unique among those in flight here"),
    Field(
        "prompt",
        str | list[chat_fields.ContentPart],
        "a string that is not empty, or a list of texts and pictures",
        note="this, `tokens` or `messages`",
    ),
    Field(
        "tokens",
        Annotated[list[TokenId], msgspec.Meta(min_length=1)],
        f"{_WORDS_TOKENS}, not empty",
        note="the prompt as the model's token ids",
    ),
    chat_fields.MESSAGES,
    *chat_fields.OPTIONS,
    *settings.CONSTRAINTS,
    Field(
        "max_tokens",
        int | float,
        "a whole number from 0 to {max_tokens}",
        note="omitted: as many as limit and context leave; 0: the prompt alone",
        whole=True,
    ),
    *settings.SAMPLING,
    whole("logprobs", 0, MAX_LOGPROBS, None, "log-probabilities, with so many alternatives"),
    *settings.HANDLING,
    flag("stream", True, "false: no token events, the text in `eos`"),
    choice(
        "priority",
        ("auto", "interactive", "background"),
        "auto",
        "the lane; auto: the daemon decides, and may change its mind",
    ),
    Field("session", Id, _ID_WORDS, note="a name for requests that belong together"),
    flag("echo", False, "the prompt's text too, before the answer; not with `messages`"),
    flag("return_tokens", False, "token ids in `eos` too, where `stream` is false"),
    flag("begin", False, "an event before the first token: lane, reason, prompt tokens"),
    flag("progress", False, "events that say how many of the prompt's tokens are computed"),
    whole(
        "prompt_logprobs",
        0,
        MAX_LOGPROBS,
        None,
        "log-probabilities of the prompt's tokens, with so many alternatives; not with `messages`",
    ),
    _MODEL,
    Field("app", Id, _ID_WORDS, note="the program that asks; omitted: the connecting process's"),
    Field("key", Id, _ID_WORDS, note="the API key's name that asked; for the gateway to set"),
    Field(
        "metadata",
        msgspec.Raw,
        f"JSON of at most {MAX_METADATA_BYTES} bytes",
        note="any JSON value; echoed in `eos`",
    ),
)

_OPTIONAL_ID = Field("id", Id, _ID_WORDS, note="echoed")
_SERIAL = whole(
    "serial", 1, 2**53, None, "the request's number in `sessions`; `id` is then only echoed"
)

_OPTIONAL_KEY = Field("key", Id, _ID_WORDS, default="", note="the API key's name that asked")

ADMIN_FIELDS: dict[str, tuple[Field, ...]] = {
    "metrics": (
        _OPTIONAL_ID,
        number("interval_ms", 50, 3_600_000, None, "one event every interval; omitted: one"),
        flag("sessions", False, "the running requests and the latest events too"),
    ),
    "cancel": (Field("id", Id, _ID_WORDS, note="the request to end"), _SERIAL),
    "priority": (
        Field("id", Id, _ID_WORDS, note="the request to move"),
        _SERIAL,
        choice("priority", ("interactive", "background"), None, "its new lane"),
    ),
    "load": (
        _OPTIONAL_ID,
        Field(
            "model",
            str,
            f"the path of a GGUF file, at most {MAX_PATH_BYTES} bytes long, or a name of `info`",
            note="a path: absolute, or as the daemon sees it; it takes the default model's place",
        ),
    ),
    "unload": (_OPTIONAL_ID, _LOADED),
    "info": (
        _OPTIONAL_ID,
        _MODEL,
        flag("template", False, "the text of the model's chat template too"),
        flag("relays", False, "this connection asks for several programs, as the gateway does"),
    ),
    "tokenize": (
        _OPTIONAL_ID,
        Field("text", str | list[str], _WORDS_TEXTS, note="the answer to a list has `counts`"),
        flag(
            "add_special",
            False,
            "with the tokens that the model puts around a text, once; of a list, around the first",
        ),
        flag("parse_special", True, "read the text of special tokens as such"),
        _MODEL,
        _ROLE,
        _OPTIONAL_KEY,
    ),
    "render": (_OPTIONAL_ID, _MODEL, _OPTIONAL_KEY, chat_fields.MESSAGES, *chat_fields.OPTIONS),
    "detokenize": (
        _OPTIONAL_ID,
        Field("tokens", list[TokenId], _WORDS_TOKENS),
        flag("with_pieces", False, "the bytes of each token too"),
        _MODEL,
        _OPTIONAL_KEY,
    ),
    "embed": (
        _OPTIONAL_ID,
        Field("input", str | list[Any], _WORDS_INPUT, note="what becomes vectors"),
        choice("encoding_format", ("float", "base64"), "float", ""),
        flag("truncate", False, "a text that is too long loses its end"),
        Field("model", _Name, _NAME_WORDS, note="a name of `info`; others: the model that embeds"),
        _OPTIONAL_KEY,
    ),
    "rerank": (
        _OPTIONAL_ID,
        Field("query", str, "a string", note="what the documents are ranked by"),
        Field("documents", list[str], _WORDS_DOCUMENTS),
        whole("top_n", 1, MAX_INPUTS, None, "results at most; omitted: one for each document"),
        flag("truncate", False, "a document that is too long loses its end"),
        Field("model", _Name, _NAME_WORDS, note="a name of `info`; others: the model that ranks"),
        _OPTIONAL_KEY,
    ),
    "cache": (_OPTIONAL_ID, _LOADED),
    "models": (_OPTIONAL_ID,),
    "adapters": (_OPTIONAL_ID, _LOADED, settings.LORA),
    "ping": (_OPTIONAL_ID,),
}

TABLES = {"generate": GENERATE_FIELDS, **ADMIN_FIELDS}
DEFAULTS = {
    kind: {f.name: f.default for f in table if f.type is not msgspec.Raw}
    for kind, table in TABLES.items()
}

WORDS: dict[str, dict[str, str]] = {
    "generate": {f.name: f.words for f in GENERATE_FIELDS}
    | chat_fields.WORDS
    | settings.WORDS
    | {"tokens[]": _WORDS_TOKEN},
    **{kind: {f.name: f.words for f in fields} for kind, fields in ADMIN_FIELDS.items()},
}
WORDS["render"] |= chat_fields.WORDS
WORDS["adapters"] |= settings.LORA_WORDS
WORDS["detokenize"]["tokens[]"] = _WORDS_TOKEN


def is_token(value: Any) -> bool:
    """Whether it may be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def given(kind: str, wire: Any) -> dict[str, Any]:
    """Return the fields of a message; a field that was left out has its default."""
    return {
        name: default if (value := getattr(wire, name)) is None else value
        for name, default in DEFAULTS[kind].items()
    }
