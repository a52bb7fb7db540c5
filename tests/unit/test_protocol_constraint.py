"""Constraints in messages: the one that is meant, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from umaserve.protocol import Generate, Limits, ProtocolError, parse_message
from umaserve.protocol.constraint import Constraint

TOOL = {"type": "function", "function": {"name": "f"}}
CHAT = [{"role": "user", "content": "x"}]


def parsed(**fields: Any) -> Generate:
    fields = fields if "messages" in fields else {"prompt": "x", **fields}
    message = parse_message(json.dumps({"id": "a", **fields}).encode(), Limits())
    assert isinstance(message, Generate)
    return message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"json_schema": None, "regex": None, "response_format": None}, None),
        ({"regex": "", "grammar": ""}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ("schema", {"type": "object"})),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, ("schema", {"a": 1})),
        ({"response_format": {"type": "json_schema", "json_schema":
          {"name": "n", "strict": True, "schema": {"type": "null"}}}},
         ("schema", {"type": "null"})),
        ({"response_format": {"type": "json_schema", "schema": {}}}, ("schema", {})),
        ({"json_schema": {"enum": ["é"]}}, ("schema", {"enum": ["é"]})),
        ({"json_schema": True}, ("schema", True)),
        ({"json_schema": False}, ("schema", False)),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
    ],
)  # fmt: skip
def test_the_constraint_of_a_request(fields: dict[str, Any], expected: Any) -> None:
    found = parsed(**fields).constraint
    if expected is None:
        assert found is None
        return
    kind, value = expected
    assert isinstance(found, Constraint) and found.kind == kind
    assert (json.loads(found.text) if kind == "schema" else found.text) == value


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({"json_schema": 5}, "E_PROTO_003", "json_schema"),
        ({"json_schema": '{"type": "object"}'}, "E_PROTO_003", "json_schema"),
        ({"regex": 5}, "E_PROTO_003", "regex"),
        ({"regex": "a", "grammar": "b"}, "E_PROTO_003", "both"),
        ({"response_format": 5}, "E_PROTO_003", "response_format"),
        ({"response_format": {}}, "E_PROTO_003", "response_format"),
        ({"response_format": {"type": "xml"}}, "E_PROTO_003", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "E_PROTO_003", "schema"),
        ({"response_format": {"type": "json_schema", "schema": 5}}, "E_PROTO_003", "schema"),
        ({"json_schema": {"enum": ["x" * 300_000]}}, "E_PROTO_005", "262144"),
        ({"regex": "é" * 140_000}, "E_PROTO_005", "262144"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parsed(**fields)
    assert caught.value.code == code and word in caught.value.message
    assert caught.value.id == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a"},
        {"regex": "a", "thinking": False, "deltas": True},
        {"regex": "a", "thinking": "none"},
        {"grammar": "root ::= x", "thinking": "high", "deltas": True},
    ],
)
def test_a_bound_conversation_that_does_not_think(fields: dict[str, Any]) -> None:
    chat = parsed(messages=CHAT, tools=[TOOL], tool_choice="none", **fields).chat
    assert chat.thinking is False and not (chat.parsed or chat.deltas or chat.bound)


@pytest.mark.parametrize("asked", [{"thinking": True}, {"thinking": "high"}, {"deltas": True}])
def test_a_bound_conversation_that_may_think(asked: dict[str, Any]) -> None:
    for form in ({"regex": "a"}, {"json_schema": {}}, {"response_format": {"type": "json_object"}}):
        chat = parsed(messages=CHAT, **form, **asked).chat
        assert chat.bound and (chat.parsed or chat.deltas)
        assert chat.thinking == asked.get("thinking")
    assert not parsed(messages=CHAT, **asked).chat.bound


@pytest.mark.parametrize(
    ("fields", "thinking", "is_bound"),
    [
        ({"regex": "a"}, None, True),
        ({"json_schema": {}, "thinking": "high"}, "high", True),
        ({"regex": "a", "thinking": False}, False, True),
        ({"grammar": "root ::= x", "thinking": True}, False, True),
        ({"regex": "a", "tool_choice": "required"}, None, False),
    ],
)
def test_tools_beside_a_constraint_are_read(
    fields: dict[str, Any], thinking: Any, is_bound: bool
) -> None:
    chat = parsed(messages=CHAT, tools=[TOOL], **fields).chat
    assert chat.parsed and chat.thinking == thinking and chat.bound is is_bound
