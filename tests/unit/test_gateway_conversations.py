"""Conversations that agents send, as the chat templates of models take them."""

from __future__ import annotations

from typing import Any

import pytest

from umaserve.gateway.daemon.refusal import Refusal, anthropic_error
from umaserve.gateway.families.anthropic.history import conversation
from umaserve.gateway.families.anthropic.shapes import no_thread, tool_fields
from umaserve.gateway.families.openai.items import Tools, messages_of
from umaserve.gateway.translate.answers.parts import Call
from umaserve.gateway.translate.messages import in_order


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_one_message_of_the_system_and_none_of_the_user_twice() -> None:
    found = in_order([
        said("system", "a"), said("developer", [text("b"), text("c")]), said("user", "d"),
        said("system", "e"), said("assistant", "f"), said("developer", "g"), said("user", "h"),
    ])  # fmt: skip
    assert found == [
        said("system", "a\n\nb\n\nc"), said("user", [text("d"), text("e")]), said("assistant", "f"),
        said("user", [text("g"), text("h")]),
    ]  # fmt: skip
    assert in_order([said("user", "a")]) == [said("user", "a")]
    assert in_order([said("system", "a")]) == [said("system", "a")]


def test_what_is_in_order_stays_as_it_is() -> None:
    call = {**said("assistant", ""), "tool_calls": [{"id": "1"}]}
    given = [said("system", "a"), said("user", [text("b")]), call, {**said("tool", "c"), "x": 1}]
    assert in_order(given) == given


def test_claude_code_tells_of_its_surroundings_after_the_task() -> None:
    """And begins with a line that is no part of the prompt."""
    billing = text("x-anthropic-billing-header: cc_version=2.1.332.500; cc_entrypoint=sdk-cli;")
    body = {
        "system": [billing, text("You are an agent."), text("Be brief.")],
        "messages": [
            said("user", [text("the date"), text("the task")]), said("system", "the folder"),
            said("assistant", [text("done")]),
        ],
    }  # fmt: skip
    assert conversation(body) == [
        said("system", "You are an agent.\nBe brief."),
        said("user", [text("the date"), text("the task"), text("the folder")]),
        said("assistant", "done"),
    ]
    plain = {"system": billing["text"], "messages": [said("user", "a")]}
    assert conversation(plain)[0]["content"] == billing["text"], "somebody wrote it"


def test_codex_speaks_as_a_developer_and_twice_as_the_user() -> None:
    def item(role: str, words: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": words}]
        return {"type": "message", "role": role, "content": content}

    items = [item("developer", "a"), item("developer", "b"), item("user", "c"), item("user", "d")]
    found = in_order(messages_of({"input": items}))
    assert found == [said("system", "a\n\nb"), said("user", [text("c"), text("d")])]


def test_tools_that_stand_in_the_input() -> None:
    """As Codex has it for the models that it knows."""
    custom = {"type": "custom", "name": "exec"}
    space = {"type": "namespace", "name": "functions", "tools": [custom]}
    more = {"type": "additional_tools", "role": "developer", "tools": [space]}
    body = {"input": [more, said("user", "a")], "tools": [{"type": "function", "name": "read"}]}
    tools = Tools(body)
    names = [tool["function"]["name"] for tool in tools.fields(body)["tools"]]
    assert names == ["read", "functions__exec"]
    item = tools.item("i", Call("c", "functions__exec", '{"input":"x"}'), "completed")
    assert (item["type"], item["namespace"], item["name"], item["input"]) == (
        "custom_tool_call", "functions", "exec", "x",
    )  # fmt: skip
    assert messages_of(body) == [said("user", "a")]
    assert Tools({"input": "a"}).functions == []


def test_threads_that_a_server_keeps_are_refused_as_anthropic_says_it() -> None:
    no_thread({"thread": None})
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(Refusal) as told:
            no_thread({"thread": thread})
        error = anthropic_error(told.value)["error"]
        assert (told.value.status, error["type"]) == (400, "invalid_request_error")
        assert error["details"] == {
            "error_code": "thread_unsupported_request", "unsupported": ["thread"],
        }  # fmt: skip


def test_tools_that_wait_until_a_result_names_them() -> None:
    def tool(name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "input_schema": {"type": "object"}, **fields}

    def told(body: dict[str, Any]) -> list[str]:
        return [tool["function"]["name"] for tool in tool_fields(body)["tools"]]

    tools = [tool("fetch", defer_loading=True), tool("read"), tool("list", defer_loading=True)]
    result = {"type": "tool_result", "tool_use_id": "1", "content": [
        {"type": "tool_reference", "tool_name": "fetch"},
        {"type": "tool_reference", "tool_name": "unknown"}, text("done"),
    ]}  # fmt: skip
    use = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    before = [said("user", "a"), said("assistant", [use])]
    assert told({"tools": tools, "messages": before}) == ["read"]
    body = {"tools": tools, "messages": [*before, said("user", [result])]}
    assert told(body) == ["read", "fetch"]
    sentences = "The tool fetch can be called now.\nThe tool unknown can be called now.\ndone"
    assert conversation(body)[-1] == {**said("tool", sentences), "tool_call_id": "1"}
    assert tool_fields({"tools": tools[:1], "messages": before}) == {}
