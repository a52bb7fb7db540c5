"""Errors for messages that could not be read, in a client's words.

Only refused messages are examined here.  Members are examined one by one, without decoding them.  A
large message therefore costs little more than one pass over its bytes.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from umaserve.protocol.errors import E_PROTO_001, E_PROTO_003, ProtocolError
from umaserve.protocol.tables import fields

SHOWN_CHARACTERS = 40
SHOWN_BYTES = 4096  # a value that is longer is not decoded to be shown
SEARCHED_BYTES = 32 * 1024  # for the id of a message that is nested too deeply

_TOO_DEEP = "the JSON is nested too deeply"
_PATH = re.compile(r"`\$\.?([^`]*)`$")
_REQUIRED = re.compile(r"missing required field `(\w+)`")
_NOT_OBJECT = re.compile(r"Expected `object`, got `(\w+)`")

_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(
    rb"\\u(?:%b(?!\\u%b)|(?<!\\u[dD][89abAB]..\\u)%b)" % (_HIGH, _LOW, _LOW), re.S
)
_STANDS_FOR_IT = rb"\uFFfd"  # the replacement character, in a spelling that nobody uses
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', re.S)
_STRING_AFTER_COLON = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")', re.S)

_decode_id = msgspec.json.Decoder(fields.Id).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


# --- of a field ----------------------------------------------------------------------------------


def show(value: Any) -> str:
    """``value`` as JSON, shortened."""
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return "what is nested too deeply"
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[: SHOWN_CHARACTERS - 3]}..."


def wrong(name: str, words: str, value: Any = ...) -> ProtocolError:
    """``E_PROTO_003``: '"name" must be ``words``, not ``value``'."""
    shown = "" if value is ... else f", not {show(value)}"
    return ProtocolError(E_PROTO_003, f'"{name}" must be {words}{shown}')


def missing(name: str) -> ProtocolError:
    return ProtocolError(E_PROTO_003, f'"{name}" is missing')


def of_field(kind: str, body: bytes, complaint: str, max_tokens: int) -> ProtocolError:
    """``msgspec``'s complaint about a field of a message, in the words of the field table."""
    members = _members(body)
    at = _PATH.search(complaint)
    name = at[1].strip().replace("[...]", "") if at else ""
    table = fields.WORDS[kind]
    required = _REQUIRED.search(complaint)
    if required:
        error = missing(f"{name}.{required[1]}" if name else required[1])
    else:
        key = re.sub(r"\[[^\]]*\]", "[]", name)
        words = table.get(key) or table.get(key.split(".")[0].split("[")[0], "valid")
        error = wrong(name, bounded(words, max_tokens), _value_at(members, name))
    error.id = _id_in(members)
    return error


def bounded(words: str, max_tokens: int) -> str:
    return words.replace("{max_tokens}", str(max_tokens))


def readable_id(body: bytes) -> str | None:
    """The ``id`` of a message in JSON, where it has a valid one."""
    return _id_in(_members(body))


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_members(body)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _id_in(members: dict[str, msgspec.Raw]) -> str | None:
    try:
        return _decode_id(members["id"])
    except (KeyError, msgspec.DecodeError, RecursionError):
        return None


def _value_at(members: dict[str, msgspec.Raw], path: str) -> Any:
    """The value that ``path`` (``slo.latency_cap``, ``stop[2]``) names, ``...`` if unreadable."""
    first, *steps = re.findall(r"\w+", path) or [""]
    raw = members.get(first)
    if raw is None or len(bytes(raw)) > SHOWN_BYTES:
        return ...
    try:
        value = _decode_any(raw)
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError, ValueError, TypeError):
        return ...
    return value


# --- of the JSON as such -------------------------------------------------------------------------


def of_json(body: bytes, error: Exception) -> ProtocolError:
    """Why ``body`` could not be read; ``error`` is what the decoder raised.

    ``E_PROTO_001`` for what is no JSON object in UTF-8.  A whole object is refused by itself
    (``E_PROTO_003``, with its ``id`` where that can be read): what comes after it can be trusted.
    """
    if isinstance(error, UnicodeDecodeError):
        return ProtocolError(E_PROTO_001, f"not UTF-8: {error.reason}")
    if isinstance(error, RecursionError):
        return _too_deep(body)
    if isinstance(error, msgspec.ValidationError):
        found = _NOT_OBJECT.match(str(error))
        if found:
            text = f"a message must be a JSON object; this is of type {found[1]}"
            return ProtocolError(E_PROTO_001, text)
        text = f"a number is out of range: {error}"
        return ProtocolError(E_PROTO_003, text, id=readable_id(body))
    return _lone_surrogate(body) or ProtocolError(E_PROTO_001, f"not valid JSON: {error}")


def _lone_surrogate(body: bytes) -> ProtocolError | None:
    """The error for an object that is whole but for escapes of half a surrogate pair."""
    if b"\0" in body:  # not JSON; and here it stands for a backslash that is escaped
        return None
    masked = body.replace(rb"\\", b"\0\0")
    found = _LONE_SURROGATE.search(masked)
    if found is None:
        return None
    mended = _LONE_SURROGATE.sub(rb"\%b" % _STANDS_FOR_IT, masked).replace(b"\0\0", rb"\\")
    try:
        members = _decode_members(mended)
    except (msgspec.DecodeError, RecursionError):  # there is more wrong with it
        return None
    names = (name for name, raw in members.items() if _STANDS_FOR_IT in bytes(raw))
    name = next(names, None)
    field = "a field" if name is None else show(name)
    text = f"{field} holds {found[0].decode()}, an escape that is no character (half of a pair)"
    id = None if _STANDS_FOR_IT in bytes(members.get("id", b"")) else _id_in(members)
    return ProtocolError(E_PROTO_003, text, id=id)


def _too_deep(body: bytes) -> ProtocolError:
    if not body.rstrip().endswith(b"}"):  # the one sign of an end that takes no recursion
        return ProtocolError(E_PROTO_001, f"not valid JSON, or cut off: {_TOO_DEEP}")
    depth = 0
    for token in _TOKEN.finditer(body, 0, SEARCHED_BYTES):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        elif depth == 1 and token[0] == b'"id"':
            value = _STRING_AFTER_COLON.match(body, token.end())
            if value:
                id = _id_in({"id": msgspec.Raw(value[1])})
                return ProtocolError(E_PROTO_003, _TOO_DEEP, id=id)
    return ProtocolError(E_PROTO_003, _TOO_DEEP)
