"""JSON schemas of the fields that bodies may have, from the socket's own table of fields."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.gateway.translate.messages import BUDGETS, EFFORTS, LAST_WORDS, MAX_BUDGET, TEMPLATE
from umaserve.gateway.translate.sampling import OTHER, OWN, SAME
from umaserve.protocol.tables.chat_fields import MAX_BUDGET_MESSAGE_CHARS
from umaserve.protocol.tables.fields import GENERATE_FIELDS
from umaserve.protocol.tables.settings import MAX_LOGIT_BIAS, MAX_SEED, MAX_STOP_BYTES, MIN_SEED

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/{name}"
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
AT_LEAST_1: Schema = {"type": "integer", "minimum": 1}
BUDGET: Schema = {"type": "integer", "minimum": -1, "maximum": MAX_BUDGET}
_STOP: Schema = {"type": "string", "maxLength": MAX_STOP_BYTES // 8}
# where the table's types are wider than what is taken, or any JSON
NARROWER: dict[str, Schema] = {
    "thinking_budget_message": {"type": "string", "maxLength": MAX_BUDGET_MESSAGE_CHARS},
    "chat_template_kwargs": OBJECT,
    "logit_bias": {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": -1000, "maximum": 1000},
        "maxProperties": MAX_LOGIT_BIAS,
    },
    "max_tokens": AT_LEAST_1,
    "messages": {
        "type": "array",
        "items": {"$ref": REFERENCE.format(name="ChatMessage")},
        "minItems": 1,
    },
    "mirostat": {"enum": [0, 2]},
    "prompt": {"anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"$ref": REFERENCE.format(name="ContentPart")}, "minItems": 1},
    ]},
    "seed": {"type": "integer", "minimum": MIN_SEED, "maximum": MAX_SEED},
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP}]},
    "thinking": {"anyOf": [FLAG, {"enum": [*EFFORTS]}]},
}


def _made() -> tuple[dict[str, Schema], dict[str, Schema]]:
    """A reference for each field by its name, and all that is referred to."""
    any_json = msgspec.Raw
    kinds = [any_json if f.type is any_json else f.type | None for f in GENERATE_FIELDS]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    fields: dict[str, Schema] = {}
    for field, schema in zip(GENERATE_FIELDS, schemas, strict=True):
        told = "; ".join(filter(None, (field.words, field.note)))
        narrow = NARROWER.get(field.name) or _whole(schema)
        components[field.name] = {**narrow, "description": told}
        fields[field.name] = {"$ref": REFERENCE.format(name=field.name)}
    return fields, components


def _whole(schema: Schema) -> Schema:
    """Without the other way to write a whole number, as 1.0."""
    kinds = schema.get("anyOf", [])
    if not any(kind.get("type") == "integer" for kind in kinds):
        return schema
    return {"anyOf": [kind for kind in kinds if kind.get("type") != "number"]}


SOCKET, COMPONENTS = _made()


def of_socket(*names: str) -> dict[str, Schema]:
    """The socket's fields of these names."""
    return {name: SOCKET[name] for name in names}


# fields that several families share
OURS = of_socket(*OWN)
SAMPLING = of_socket(*SAME) | {theirs: SOCKET[ours] for theirs, ours in OTHER.items()}
CALLER = of_socket("priority") | {
    "service_tier": {"type": "string", "examples": ["flex"]},
    "prompt_cache_key": TEXT,
    "user": TEXT,
}
ASKED = {"model": TEXT, "stream": FLAG, **SAMPLING, **OURS, **CALLER}
PROGRESS = {"timings_per_token": FLAG, "return_progress": FLAG}
TOOLS = of_socket("tools", "tool_choice", "parallel_tool_calls")
CONVERSATION = {
    **of_socket(*TEMPLATE),
    **dict.fromkeys(BUDGETS, BUDGET),
    **dict.fromkeys(LAST_WORDS, SOCKET["thinking_budget_message"]),
}
CHAT = {
    **of_socket("messages"),
    **CONVERSATION,
    **TOOLS,
    "reasoning_effort": {"enum": ["none", *EFFORTS]},
    "reasoning": {"type": "object", "properties": {
        "effort": {"enum": ["none", *EFFORTS]}, "enabled": FLAG, "max_tokens": BUDGET}},
}  # fmt: skip
_ID: Schema = {"type": "integer", "minimum": 0}
_PROMPT: list[Schema] = [
    TEXT,
    {"type": "object", "properties": {
        "prompt_string": TEXT, "multimodal_data": {"type": "array", "items": TEXT},
    }, "required": ["prompt_string"]},
    {"type": "array", "items": {"anyOf": [TEXT, _ID]}, "minItems": 1},
]
PROMPTS: Schema = {
    "anyOf": [*_PROMPT, {"type": "array", "items": {"anyOf": _PROMPT}, "minItems": 1}]
}
