"""Conversations as they come: what goes with the messages, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from umaserve.protocol import (
    Ending,
    FrameDecoder,
    Generate,
    Limits,
    ProtocolError,
    Render,
    Timings,
    Usage,
    delta_event,
    eos_event,
    parse_message,
)
from umaserve.protocol.tables.chat_fields import MAX_OPTIONS_BYTES, MAX_TOOLS

ASK = {"role": "user", "content": "hi"}
SCHEMA = '{"type":"object","properties":{"z":{"const":1.0},"a":{"enum":["\\u00e9"]}}}'


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def called(name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": name, "arguments": arguments}}


def parse(limits: Limits = Limits(), **fields: Any) -> Generate:  # noqa: B008  (it is frozen)
    message = parse_message(json.dumps({"id": "a", "messages": [ASK], **fields}).encode(), limits)
    assert isinstance(message, Generate)
    return message


def refused(**fields: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse(**fields)
    assert (caught.value.code, caught.value.id) == ("E_PROTO_003", "a")
    return caught.value.message


def test_a_prompt_may_have_pictures_among_its_texts() -> None:
    parts = [{"type": "text", "text": "See "}, {"type": "image", "data": "AA=="},
             {"type": "text", "text": "."}, {"type": "image", "why": "it is far"}]  # fmt: skip
    got = parse(Limits(max_picture_bytes=99), prompt=parts, messages=None)
    assert got.prompt == "See .[picture left out: it is far]" and got.messages is None
    assert [part.type for part in got.parts] == ["text", "image", "text", "text"]
    assert got.chat.unread == ("image",)
    got = parse(prompt=parts, messages=None)
    words = "[picture left out: this model reads text only]"
    assert got.prompt == f"See {words}.{words}" and not got.parts
    assert got.chat.unread == ("image", "image")


def test_messages_are_kept_as_openai_writes_them() -> None:
    assistant = {
        "role": "assistant", "content": None, "reasoning_content": "hm",
        "tool_calls": [called(arguments={"x": [1]}), called(arguments='{"x": [1]}')],
    }  # fmt: skip
    result = {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"}
    got = parse(messages=[ASK, assistant, result]).messages
    assert got is not None
    written = json.loads(msgspec.json.encode(got))
    assert written == [ASK, {k: v for k, v in assistant.items() if v is not None}, result]


def test_what_is_left_out_has_its_default() -> None:
    options = parse().chat
    assert bytes(options.tools) == b"[]" and bytes(options.chat_template_kwargs) == b"{}"
    assert options.tool_choice == "auto" and options.continue_final_message is False
    assert options.parallel_tool_calls is None and options.thinking is None
    assert not options.parsed


def test_schemas_are_kept_as_they_came() -> None:
    body = '{"id":"a","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",'
    body += '"function":{"name":"f","strict":true,"parameters":' + SCHEMA + "}}]}"
    message = parse_message(body.encode(), Limits())
    assert isinstance(message, Generate) and message.chat.parsed
    written = bytes(message.chat.tools).decode()
    assert SCHEMA in written and json.loads(written)[0]["function"].keys() == {"name", "parameters"}


def test_a_tool_without_a_schema_takes_nothing() -> None:
    for given in ({}, {"parameters": None}):
        (made,) = json.loads(bytes(parse(tools=[tool("f", **given)]).chat.tools))
        assert made["function"]["parameters"] == {}


def test_the_tool_that_is_chosen_is_the_only_one() -> None:
    options = parse(tools=[tool("f"), tool("g")], tool_choice=tool("g")).chat
    assert [t["function"]["name"] for t in json.loads(bytes(options.tools))] == ["g"]
    assert options.tool_choice == "required"
    assert "'h', which is no tool" in refused(tools=[tool("f")], tool_choice=tool("h"))
    assert 'there are no "tools"' in refused(tool_choice="required")


@pytest.mark.parametrize("thinking", [True, False, "low"])
def test_thinking_makes_a_message_of_the_answer(thinking: bool | str) -> None:
    options = parse(thinking=thinking).chat
    assert options.thinking == thinking and options.parsed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": {}}, '"tools" must be a list of at most'),
        ({"tools": [tool("f")] * (MAX_TOOLS + 1)}, f"it has {MAX_TOOLS + 1}"),
        ({"tools": [{"type": "retrieval"}]}, '"tools[0].type" must be "function"'),
        ({"tools": [{"type": "function"}]}, '"tools[0].function" is missing'),
        ({"tools": [tool("f", parameters=[])]}, '"tools[0].function.parameters" must be an object'),
        ({"tool_choice": "maybe"}, '"tool_choice" must be "auto", "none"'),
        ({"parallel_tool_calls": 1}, '"parallel_tool_calls" must be true or false, not 1'),
        ({"thinking": ""}, '"thinking" must be true, false, or an effort'),
        ({"thinking": 3}, '"thinking" must be true, false, or an effort'),
        ({"chat_template_kwargs": []}, '"chat_template_kwargs" must be an object'),
        ({"chat_template_kwargs": {"x": "x" * MAX_OPTIONS_BYTES}}, "must be an object of at most"),
        ({"continue_final_message": "all"}, '"continue_final_message" must be true, false'),
        ({"continue_final_message": True}, "must be the assistant's"),
        ({"messages": [{"role": "system"}]}, '"messages[0].content" is missing'),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         '"messages[0].content[0].text" is missing'),
        ({"messages": [{"content": "x"}]}, '"messages[0].role" is missing'),
        ({"messages": [{"role": "user", "content": None}]}, '"messages[0].content" is missing'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    assert words in refused(**fields)


@pytest.mark.parametrize(
    "field", [{"tools": []}, {"thinking": False}, {"chat_template_kwargs": {}}], ids=list
)
def test_a_prompt_goes_alone(field: dict[str, Any]) -> None:
    (name,) = field
    message = refused(messages=None, prompt="x", **field)
    assert message == f'"{name}" goes with "messages", not with "prompt"'


def test_tools_and_calls_count_as_the_messages_do() -> None:
    limits = Limits(max_prompt_bytes=200)
    long = "x" * 200
    for fields in (
        {"tools": [tool("f", description=long)]},
        {"messages": [{"role": "assistant", "tool_calls": [called(arguments={"a": long})]}]},
        {"messages": [{"role": "assistant", "reasoning_content": long + "y"}]},
    ):
        with pytest.raises(ProtocolError, match="E_LIMIT_001"):
            parse(limits, **fields)


def test_a_question_for_the_prompt_alone() -> None:
    body = {"type": "render", "id": "r", "messages": [ASK], "thinking": "high"}
    message = parse_message(json.dumps(body).encode(), Limits())
    assert isinstance(message, Render) and message.id == "r" and message.chat.thinking == "high"
    with pytest.raises(ProtocolError, match='"messages" is missing'):
        parse_message(b'{"type":"render"}', Limits())


def test_the_events_of_a_message() -> None:
    (delta,) = FrameDecoder().feed(delta_event("a", {"content": "é"}))
    assert json.loads(delta) == {"id": "a", "event": "delta", "content": "é"}
    message = msgspec.Raw(b'{"role":"assistant","content":""}')
    (end,) = FrameDecoder().feed(
        eos_event(
            "a",
            Ending(reason="tool_calls", message=message, usage=Usage(), timings=Timings()),
        )
    )
    assert json.loads(end)["message"] == {"role": "assistant", "content": ""}
    assert json.loads(end)["reason"] == "tool_calls"
