"""Bodies in, typed messages out: ``parse_message``.

The typed decoding is msgspec's; `generate` and `admin` apply the few rules that no type can say.
What msgspec complains about is put into words by ``umaserve.protocol.mistakes``.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec

from umaserve.protocol import mistakes
from umaserve.protocol.admin import admin
from umaserve.protocol.errors import ProtocolError
from umaserve.protocol.generate import Limits, generate
from umaserve.protocol.messages import Message
from umaserve.protocol.mistakes import wrong
from umaserve.protocol.tables import fields
from umaserve.protocol.tables.chat_fields import NULL
from umaserve.protocol.tables.field import struct_of


class _Head(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw(b"null")
    event: msgspec.Raw = msgspec.Raw(b"null")


_WORD_BYTES = 256
_decode_any = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_wire: dict[str, Any] = {
    kind: msgspec.json.Decoder(struct_of(f"Wire_{kind}", table)).decode
    for kind, table in fields.TABLES.items()
}
_WHOLE = {
    kind: [(field.name, field.words) for field in table if field.whole]
    for kind, table in fields.TABLES.items()
}
_TYPES = tuple(fields.ADMIN_FIELDS)


def parse_message(body: bytes, limits: Limits) -> Message:
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
            return generate(wire, limits)
        return admin(kind, wire, limits)
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
    if data == NULL:
        return None
    try:
        return _decode_any(data) if len(data) <= _WORD_BYTES else ...
    except msgspec.ValidationError:  # a number out of range
        return ...


def _whole(kind: str, wire: Any) -> None:
    """Turn whole numbers that were written like ``1.0`` into ints."""
    for name, words in _WHOLE[kind]:
        value = getattr(wire, name)
        if type(value) is float:
            if not value.is_integer() or (name == "mirostat" and value not in (0, 2)):
                raise wrong(name, words, value)
            setattr(wire, name, int(value))
