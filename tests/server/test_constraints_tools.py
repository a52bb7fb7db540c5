"""Tools with constraints: what is required binds at once, and a form stands beside a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.support.callers import FORM, FUNCTION, HELLO, PARAMETERS, TOOL, is_call, served, tokens
from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess

NAMED = {"type": "function", "function": {"name": "read_file"}}


@pytest.fixture(
    scope="module",
    params=[
        "Qwen-Qwen3-0.6B",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "meta-llama-Llama-3.1-8B-Instruct",
    ],
)
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    with served(tmp_path_factory.mktemp("caller"), request.param) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its prompts begin the thoughts."""
    with served(tmp_path_factory.mktemp("thinker"), "deepseek-ai-DeepSeek-V3.1") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with served(tmp_path_factory.mktemp("qwen"), "Qwen-Qwen3-0.6B") as daemon:
        yield daemon


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_required_call_is_all_of_the_answer(daemon: DaemonProcess, choice: Any) -> None:
    body = {
        "messages": HELLO, "tools": [TOOL], "tool_choice": choice, "max_tokens": 120,
        "parallel_tool_calls": False, "reasoning_effort": "none", **leads(daemon, "hello"),
    }  # fmt: skip
    (found,) = post(port_of(daemon), "/v1/chat/completions", body).json["choices"]
    assert found["finish_reason"] == "tool_calls", found
    assert not found["message"]["content"]
    (call,) = found["message"]["tool_calls"]
    is_call(call["function"]["name"], json.loads(call["function"]["arguments"]))


def test_calls_that_are_not_parallel_end_with_the_first(daemon: DaemonProcess) -> None:
    """Another call is likelier than the end; only what binds ends the answer."""
    (end,), (more,) = tokens(daemon, "<|endoftext|>"), tokens(daemon, "<")
    body = {
        "messages": HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300,
        "reasoning_effort": "none", "temperature": 0, "parallel_tool_calls": False,
        "logit_bias": {str(more): 900, str(end): 800},
    }  # fmt: skip
    (found,) = post(port_of(daemon), "/v1/chat/completions", body).json["choices"]
    assert found["finish_reason"] == "tool_calls", found
    assert len(found["message"]["tool_calls"]) == 1


def leads(daemon: DaemonProcess, first: str) -> dict[str, Any]:
    """Fields by which the end is the likeliest, and after it a text, where these may come."""
    (end,) = tokens(daemon, "<|endoftext|>")
    return {"temperature": 0, "logit_bias": {str(tokens(daemon, first)[0]): 800, str(end): 900}}


def test_a_required_call_comes_behind_thoughts(thinker: DaemonProcess) -> None:
    word = tokens(thinker, "hm</think>")
    (end,) = tokens(thinker, "<|endoftext|>")
    assert len(set(word)) == len(word)
    bias = {str(token): 900 - 50 * i for i, token in enumerate(word)} | {str(end): 300}
    body = {
        "messages": HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 150,
        "temperature": 0, "logit_bias": bias, "repeat_penalty": 10, "penalty_last_n": len(word) - 1,
        "chat_template_kwargs": {"thinking": True},
    }  # fmt: skip
    (found,) = post(port_of(thinker), "/v1/chat/completions", body).json["choices"]
    assert found["message"]["reasoning_content"] == "hm", found
    (call,) = found["message"]["tool_calls"]
    is_call(call["function"]["name"], json.loads(call["function"]["arguments"]))


OPENAI_FORM = {"type": "json_schema", "json_schema": {"name": "w", "schema": FORM}}
FLAT_FORM = {"type": "json_schema", "name": "w", "schema": FORM}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": HELLO, "tools": [TOOL], "response_format": OPENAI_FORM, "max_tokens": 120,
        "reasoning_effort": "none", "parallel_tool_calls": False,
    },
    "/v1/responses": {
        "input": "hello", "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": FLAT_FORM}, "max_output_tokens": 120, "reasoning": {"effort": "none"},
        "parallel_tool_calls": False,
    },
    "/v1/messages": {
        "model": "m", "messages": HELLO, "max_tokens": 120, "thinking": {"type": "disabled"},
        "tools": [{"name": "read_file", "input_schema": PARAMETERS}],
        "output_format": {"type": "json_schema", "schema": FORM},
        "tool_choice": {"type": "auto"}, "stop_sequences": ["</tool_call>"],
    },
    "/api/chat": {"messages": HELLO, "tools": [TOOL], "format": FORM, "think": False},
}  # fmt: skip


def told(path: str, body: bytes, stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls of an answer."""
    text, calls = "", list[tuple[str, Any]]()
    if path == "/v1/responses":
        events = [event for event in sse(body) if isinstance(event, dict)] if stream else []
        response = events[-1]["response"] if stream else json.loads(body)
        for item in response["output"]:
            if item["type"] == "function_call":
                calls.append((item["name"], json.loads(item["arguments"])))
            else:
                text += item["content"][0]["text"]
    elif path == "/v1/messages" and not stream:
        for block in json.loads(body)["content"]:
            text += block.get("text", "")
            if block["type"] == "tool_use":
                calls.append((block["name"], block["input"]))
    elif path == "/v1/messages":
        names, arguments = list[str](), ""
        for event in sse(body):
            names += [event["content_block"]["name"]] if "name" in event.get(
                "content_block", {}
            ) else []
            delta = event.get("delta", {})
            text, arguments = (
                text + delta.get("text", ""), arguments + delta.get("partial_json", ""),
            )  # fmt: skip
        calls = [(name, json.loads(arguments)) for name in names]
    elif path == "/api/chat":
        for line in body.splitlines():
            message = json.loads(line)["message"]
            text += message["content"]
            for call in message.get("tool_calls", ()):
                calls.append((call["function"]["name"], call["function"]["arguments"]))
    else:
        name, arguments = "", ""
        events = sse(body) if stream else [json.loads(body)]
        for event in events:
            if isinstance(event, dict) and event["choices"]:
                choice = event["choices"][0]
                part = choice.get("delta") or choice.get("message") or {}
                text += part.get("content") or ""
                for call in part.get("tool_calls", ()):
                    name += call["function"].get("name") or ""
                    arguments += call["function"].get("arguments") or ""
        calls = [(name, json.loads(arguments))] if name else []
    return text, calls


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_call_or_else_the_form(qwen: DaemonProcess, path: str, stream: bool) -> None:
    for first, calls in (("<", True), ("{", False)):
        lead: dict[str, Any] = leads(qwen, first)
        body = {**ROUTES[path], "stream": stream}
        body |= {"options": lead} if path == "/api/chat" else lead
        reply = post(port_of(qwen), path, body)
        assert reply.status == 200, reply.body
        text, found = told(path, reply.body, stream)
        if path == "/v1/messages":
            calls = bool(found)  # it takes no logit_bias
        if calls:
            ((name, arguments),) = found
            is_call(name, arguments)
            assert not text.strip()
        else:
            assert not found
            jsonschema.validate(json.loads(text), FORM)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": FORM},
        {"regex": "[{]yes[}]"},
        {"grammar": 'root ::= "{yes}"'},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["schema", "regex", "grammar", "object"],
)
def test_over_the_socket_too(qwen: DaemonProcess, form: dict[str, Any], stream: bool) -> None:
    fields = {
        "messages": HELLO, "tools": [TOOL], "thinking": False, "max_tokens": 120,
        "parallel_tool_calls": False, "stream": stream, **form,
    }  # fmt: skip
    with qwen.client() as client:
        client.ask("call", None, **fields, **leads(qwen, "<"))
        client.ask("form", None, **fields, **leads(qwen, "{"))
        client.finish("call")
        client.finish("form")
        call, other = client.results["call"].eos, client.results["form"].eos
    assert call is not None and call["reason"] == "tool_calls", call
    (made,) = call["message"]["tool_calls"]
    is_call(made["function"]["name"], json.loads(made["function"]["arguments"]))
    assert other is not None and "tool_calls" not in other["message"]
    assert other["message"]["content"].startswith("{")
    if "json_schema" in form:
        jsonschema.validate(json.loads(other["message"]["content"]), FORM)


def test_a_required_call_leaves_the_form_alone(qwen: DaemonProcess) -> None:
    body = {**ROUTES["/v1/chat/completions"], "tool_choice": "required", **leads(qwen, "{")}
    (found,) = post(port_of(qwen), "/v1/chat/completions", body).json["choices"]
    assert found["finish_reason"] == "tool_calls"


def test_a_form_that_cannot_be_held_to_is_refused_beside_tools(qwen: DaemonProcess) -> None:
    bad = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
    body = {**ROUTES["/v1/chat/completions"], "response_format": bad}
    reply = post(port_of(qwen), "/v1/chat/completions", body)
    assert reply.status == 400 and reply.json["error"]["uma_code"] == "E_PROTO_005"


def test_a_schema_with_open_parts_still_binds(qwen: DaemonProcess) -> None:
    parts = {"x": {"type": "any"}, "path": PARAMETERS["properties"]["path"]}  # type: ignore[index]
    function = {"name": "read_file", "parameters": {**PARAMETERS, "properties": parts}}
    tool = {"type": "function", "function": function}
    body = {
        "messages": HELLO, "tools": [tool], "tool_choice": "required", "max_tokens": 150,
        "reasoning_effort": "none", "parallel_tool_calls": False, **leads(qwen, "hello"),
    }  # fmt: skip
    reply = post(port_of(qwen), "/v1/chat/completions", body)
    (found,) = reply.json["choices"]
    (call,) = found["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["path"] in ("a.txt", "größe.txt")
    assert reply.headers["x-uma-open"] == "read_file#/properties/x type"
