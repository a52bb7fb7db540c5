"""Histories with parts that no template takes: each stands there in words, and is listed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from umaserve.protocol import Generate, Limits, parse_message
from umaserve.protocol.history import MAX_TYPE_CHARS, PART, PICTURE, ROLE, TEXT_ONLY

ASK = {"role": "user", "content": "hi"}
LEFT_OUT = PICTURE.format("", TEXT_ONLY)
SENT = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def called(**function: Any) -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": "f", **function}}


def taken(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages as they are rendered, and what of them is unread."""
    body = json.dumps({"id": "a", "messages": messages}).encode()
    message = parse_message(body, Limits())
    assert isinstance(message, Generate)
    return json.loads(msgspec.json.encode(message.messages)), list(message.chat.unread)


def test_a_part_that_is_no_text_becomes_a_sentence() -> None:
    asked = {"role": "user", "content": [text("Look:"), SENT, {"type": "file", "file": {}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "image", "data": "AAAA"}]}
    (first, second), unread = taken(asked, result)
    assert unread == ["image_url", "file", "image"]
    assert first["content"] == [
        text("Look:"), text(LEFT_OUT), text(PART.format("file")),
    ]  # fmt: skip
    assert second == {**result, "content": [text(LEFT_OUT)]}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", {}),
        (None, {}),
        ({}, {}),
        ('{"x": 1}', {"x": 1}),
        ({"x": 1}, {"x": 1}),
        ('{"path": "a', {"arguments": '{"path": "a'}),
        ("[1]", {"arguments": "[1]"}),
        ([1], {"arguments": "[1]"}),
        (3, {"arguments": "3"}),
        ("null", {"arguments": "null"}),
        ("[" * 5000, {"arguments": "[" * 5000}),
    ],
)
def test_arguments_are_an_object(given: Any, wanted: dict[str, Any]) -> None:
    """Whatever a call was cut to: some templates go through its arguments one by one."""
    call = {"role": "assistant", "tool_calls": [called(arguments=given)]}
    (_, message), unread = taken(ASK, call)
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == wanted
    assert not unread


def test_calls_of_no_function() -> None:
    other = {"type": "computer", "id": "2", "action": {"x": 1}}
    nameless = called(name=None)
    said = {"role": "assistant", "content": "I look.", "tool_calls": [called(), other, nameless]}
    (_, message), unread = taken(ASK, said)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert unread == ["computer", "function"]
    assert message["content"][0] == text("I look.") and "computer" in message["content"][1]["text"]
    (_, message), _ = taken(ASK, {"role": "assistant", "tool_calls": [other]})
    assert "tool_calls" not in message and "computer" in message["content"][0]["text"]


def test_an_unknown_role_is_a_part_of_what_the_user_says() -> None:
    critic = {"role": "critic", "content": "Too long."}
    said = [text(ROLE.format("critic")), text("Too long.")]
    answer = {"role": "assistant", "content": "yes"}
    messages, unread = taken(answer, critic, answer)
    assert messages[1] == {"role": "user", "content": said} and unread == ["critic"]
    messages, _ = taken(ASK, critic, ASK, answer)
    assert messages == [{"role": "user", "content": [text("hi"), *said, text("hi")]}, answer]
    messages, unread = taken(ASK, {"role": "critic", "content": [SENT]})
    assert unread == ["critic", "image_url"]
    assert messages[0]["content"][-1] == text(LEFT_OUT)


def test_turns_that_were_cut_may_say_nothing() -> None:
    for role in ("assistant", "tool"):
        (_, message), unread = taken(ASK, {"role": role, "content": None})
        assert (message["content"], unread) == ("", [])


def test_what_is_told_again_is_bounded() -> None:
    long = "x" * 5000
    messages, unread = taken({"role": long, "content": [{"type": long}]})
    assert unread == [long[:MAX_TYPE_CHARS]] * 2
    assert len(json.dumps(messages)) < 600


def test_histories_without_such_parts_stay_as_they_are() -> None:
    given = [{"role": "system", "content": "a"}, ASK, ASK, {"role": "user", "content": [text("")]}]
    assert taken(*given) == (given, [])
