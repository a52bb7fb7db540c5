"""Constraint of an answer: a JSON schema, a regular expression or a grammar.

The engine decides whether an answer can follow the constraint (`umaserve.engine.constraints`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.protocol.errors import E_PROTO_003, E_PROTO_005, ProtocolError
from umaserve.protocol.mistakes import wrong
from umaserve.protocol.tables.chat_fields import NULL
from umaserve.protocol.tables.settings import CONSTRAINTS

MAX_BYTES = 256 * 1024
OBJECT = '{"type":"object"}'
GRAMMAR = "grammar"  # the kind of a grammar in GBNF

NAMES = tuple(field.name for field in CONSTRAINTS)
_WORDS = {field.name: field.words for field in CONSTRAINTS}


class Constraint(msgspec.Struct, frozen=True):
    """``kind`` is ``schema``, ``regex`` or ``grammar``."""

    kind: str
    text: str


class _Named(msgspec.Struct):
    schema: msgspec.Raw = msgspec.Raw(b"")


class _Format(msgspec.Struct):
    type: str
    json_schema: _Named | None = None
    schema: msgspec.Raw = msgspec.Raw(b"")


_decode_format = msgspec.json.Decoder(_Format).decode


def constraint(wire: Any) -> Constraint | None:
    """The one that a request has.  Raises ``ProtocolError``: ``E_PROTO_003``, or ``E_PROTO_005``
    for one that is too large."""
    given = [name for name in NAMES if _is_given(getattr(wire, name))]
    if len(given) > 1:
        text = f'"{given[0]}" and "{given[1]}" are both given; an answer follows one of them'
        raise ProtocolError(E_PROTO_003, text)
    if not given:
        return None
    (name,) = given
    value = getattr(wire, name)
    if name == "response_format":
        found = _of_format(bytes(value))
    elif name == "json_schema":
        found = Constraint("schema", _schema(name, bytes(value)))
    else:
        found = Constraint(name, value)
    if found is not None and len(found.text.encode()) > MAX_BYTES:
        size = len(found.text.encode())
        raise ProtocolError(E_PROTO_005, f'"{name}" has {size} bytes; the limit is {MAX_BYTES}')
    return found


def _is_given(value: Any) -> bool:
    return bytes(value) != NULL if isinstance(value, msgspec.Raw) else bool(value)


def _of_format(data: bytes) -> Constraint | None:
    """``response_format``; llama-server's spellings with ``schema`` beside ``type`` too."""
    try:
        form = _decode_format(data)
    except (msgspec.DecodeError, RecursionError):
        raise wrong("response_format", _WORDS["response_format"]) from None
    schema = bytes(form.json_schema.schema if form.json_schema else b"") or bytes(form.schema)
    if form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("schema", _schema("response_format.schema", schema or OBJECT.encode()))
    if form.type != "json_schema":
        raise wrong("response_format", _WORDS["response_format"])
    if not schema:
        raise ProtocolError(E_PROTO_003, '"response_format.json_schema.schema" is missing')
    return Constraint("schema", _schema("response_format.json_schema.schema", schema))


def _schema(name: str, data: bytes) -> str:
    if not data.startswith((b"{", b"true", b"false")):
        raise wrong(name, _WORDS["json_schema"])
    return data.decode()
