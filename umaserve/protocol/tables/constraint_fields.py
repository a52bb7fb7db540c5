"""The fields of a request that say what its answer has to follow; one of them at most."""

from __future__ import annotations

import msgspec

from umaserve.protocol.tables.field import Field

FIELDS: tuple[Field, ...] = (
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
