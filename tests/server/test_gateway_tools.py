"""Tool calls over HTTP, through front, gateway and uma-chat; what the model says is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat_questions import templates
from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION = {"name": "read_file", "description": "Reads a file.", "parameters": PARAMETERS}
ASKED = {"path": "größe.txt"}
CALL = f'<tool_call>\n{json.dumps({"name": "read_file", "arguments": ASKED})}\n</tool_call>'
SAID = "<think>\nA file, then.\n</think>\n\nI look. " + CALL
QUESTION = [{"role": "user", "content": "What does it say?"}]
OPENAI = {"messages": QUESTION, "tools": [{"type": "function", "function": FUNCTION}]}
ANTHROPIC = {
    "model": "m", "max_tokens": 500, "messages": QUESTION,
    "tools": [{"name": "read_file", "description": "Reads a file.", "input_schema": PARAMETERS}],
}  # fmt: skip


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a daemon whose model is Qwen3 by its template."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": SAID}
    path = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(path, n_ctx=4096, http="127.0.0.1:0", environment=given) as daemon:
        yield port_of(daemon)


def test_openai_gives_the_call_whole(port: int) -> None:
    (choice,) = post(port, "/v1/chat/completions", OPENAI).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"]
    assert call["function"]["name"] == "read_file"
    assert json.loads(call["function"]["arguments"]) == ASKED
    assert message["content"].strip() == "I look."
    assert message["reasoning_content"].strip() == "A file, then."
    # and takes it, with its result, into the next turn
    result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    after = {**OPENAI, "messages": [*QUESTION, message, result]}
    assert post(port, "/v1/chat/completions", after).status == 200


def test_openai_streams_the_call(port: int) -> None:
    reply = post(port, "/v1/chat/completions", {**OPENAI, "stream": True})
    chunks = [c["choices"][0] for c in sse(reply.body) if isinstance(c, dict) and c["choices"]]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    parts = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert {part["index"] for part in parts} == {0}
    assert [part["id"] for part in parts if "id" in part] == [parts[0]["id"]]
    told = "".join(part["function"].get("arguments", "") for part in parts)
    assert json.loads(told) == ASKED and len(parts) > 1
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    assert text.strip() == "I look." and "tool_call" not in text


def test_anthropic_gives_the_call_whole(port: int) -> None:
    answer = post(port, "/v1/messages", ANTHROPIC).json
    assert answer["stop_reason"] == "tool_use"
    calls: list[Any] = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert [(call["name"], call["input"]) for call in calls] == [("read_file", ASKED)]
    result = {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "42"}
    turns = [*QUESTION, {"role": "assistant", "content": answer["content"]},
             {"role": "user", "content": [result]}]  # fmt: skip
    assert post(port, "/v1/messages", {**ANTHROPIC, "messages": turns}).status == 200


def test_anthropic_streams_the_call(port: int) -> None:
    events = list(sse(post(port, "/v1/messages", {**ANTHROPIC, "stream": True}).body))
    begun = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [block["name"] for block in begun if block["type"] == "tool_use"] == ["read_file"]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    told = "".join(d["partial_json"] for d in deltas if d["type"] == "input_json_delta")
    assert json.loads(told) == ASKED
    ends = [e for e in events if e["type"] == "message_delta"]
    assert [end["delta"]["stop_reason"] for end in ends] == ["tool_use"]


def test_ollama_gives_the_call(port: int) -> None:
    answer = post(port, "/api/chat", {**OPENAI, "stream": False}).json
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "read_file" and call["function"]["arguments"] == ASKED


THOUGHT, REST = "A file, then.", SAID.partition("</think>\n\n")[2]


def streamed(path: str, body: bytes) -> tuple[str, str]:
    """Thinking and text of a stream."""
    thought = text = ""
    events = sse(body) if path != "/api/chat" else [json.loads(x) for x in body.splitlines()]
    for event in events:
        if path == "/v1/messages" and event["type"] == "content_block_delta":
            thought += event["delta"].get("thinking", "")
            text += event["delta"].get("text", "")
        elif path == "/v1/responses" and event["type"].endswith("_text.delta"):
            is_thought = event["type"] == "response.reasoning_text.delta"
            thought, text = thought + event["delta"] * is_thought, text + event["delta"] * (
                not is_thought
            )
        elif path == "/api/chat":
            thought += event["message"].get("thinking", "")
            text += event["message"]["content"]
        elif path == "/v1/chat/completions" and isinstance(event, dict):
            delta = event["choices"][0]["delta"]
            thought += delta.get("reasoning_content", "")
            text += delta.get("content") or ""
    return thought, text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": QUESTION}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 500}),
        ("/v1/responses", {"input": "What does it say?"}),
        ("/api/chat", {"messages": QUESTION}),
    ],
)
def test_thoughts_that_nobody_asked_for_are_no_text(
    port: int, path: str, body: dict[str, Any]
) -> None:
    reply = post(port, path, {**body, "stream": True})
    thought, text = streamed(path, reply.body)
    assert thought.strip() == THOUGHT and text == REST
    whole = post(port, path, {**body, "stream": False}).body.decode()
    assert THOUGHT in whole and "<think>" not in whole


def test_thoughts_as_they_come_where_that_is_wanted(port: int) -> None:
    body = {"messages": QUESTION, "reasoning_format": "none"}
    (choice,) = post(port, "/v1/chat/completions", body).json["choices"]
    assert choice["message"] == {"role": "assistant", "content": SAID}


CUT = SAID.index("e.txt")  # characters up to the middle of the call's arguments
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": OPENAI,
    "/v1/messages": ANTHROPIC,
    "/v1/responses": {"input": "What does it say?", "tools": [{"type": "function", **FUNCTION}]},
    "/api/chat": OPENAI,
}
LIMIT = {
    "/v1/chat/completions": {"max_tokens": CUT},
    "/v1/messages": {"max_tokens": CUT},
    "/v1/responses": {"max_output_tokens": CUT},
    "/api/chat": {"options": {"num_predict": CUT}},
}
STOP = {
    "/v1/chat/completions": {"stop": "e.txt"},
    "/v1/messages": {"stop_sequences": ["e.txt"]},
    "/v1/responses": {"stop": "e.txt"},
    "/api/chat": {"options": {"stop": ["e.txt"]}},
}


def cut(port: int, path: str, how: dict[str, dict[str, Any]], stream: bool) -> list[Any]:
    """Events of an answer that is cut within its call, or the whole answer alone."""
    reply = post(port, path, {**ROUTES[path], **how[path], "stream": stream})
    assert reply.status == 200, reply.body
    if not stream:
        return [reply.json]
    if path == "/api/chat":
        return [json.loads(line) for line in reply.body.splitlines()]
    return [event for event in sse(reply.body) if isinstance(event, dict)]


@pytest.mark.parametrize("stream", [True, False])
def test_openai_tells_that_a_call_is_cut(port: int, stream: bool) -> None:
    for how, reason in ((LIMIT, "length"), (STOP, "stop")):
        events = cut(port, "/v1/chat/completions", how, stream)
        choice = [event["choices"][0] for event in events if event["choices"]][-1]
        assert choice["finish_reason"] == reason
        if not stream:
            calls = choice["message"].get("tool_calls", [])
            assert len(calls) == (reason == "length")  # a call before "stop" is whole


@pytest.mark.parametrize("stream", [True, False])
def test_anthropic_tells_that_a_call_is_cut(port: int, stream: bool) -> None:
    for how, reason in ((LIMIT, "max_tokens"), (STOP, "stop_sequence")):
        events = cut(port, "/v1/messages", how, stream)
        if stream:
            (end,) = [e["delta"] for e in events if e["type"] == "message_delta"]
            assert end["stop_reason"] == reason
        else:
            assert events[0]["stop_reason"] == reason
            assert "tool_use" not in [block["type"] for block in events[0]["content"]]


@pytest.mark.parametrize("stream", [True, False])
def test_responses_tell_that_a_call_is_cut(port: int, stream: bool) -> None:
    for how, reason in ((LIMIT, "max_output_tokens"), (STOP, "stop")):
        events = cut(port, "/v1/responses", how, stream)
        response = events[-1]["response"] if stream else events[0]
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": reason}
        assert [item["status"] for item in response["output"]][-1] == "incomplete"
        assert response["output"][-1]["type"] == "function_call"
        if stream:
            kinds = [event["type"] for event in events]
            assert kinds[-1] == "response.incomplete"
            assert "response.function_call_arguments.done" not in kinds
        # what was kept goes on without half a call
        after = {"input": "Go on.", "previous_response_id": response["id"]}
        assert post(port, "/v1/responses", after).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_ollama_tells_that_a_call_is_cut(port: int, stream: bool) -> None:
    for how, reason in ((LIMIT, "length"), (STOP, "stop")):
        events = cut(port, "/api/chat", how, stream)
        assert events[-1]["done_reason"] == reason
        assert not any(event["message"].get("tool_calls") for event in events)


def test_a_text_that_is_cut_is_an_incomplete_item(port: int) -> None:
    limit = {"max_output_tokens": SAID.index("look")}
    body = {**ROUTES["/v1/responses"], **limit}
    for stream in (True, False):
        reply = post(port, "/v1/responses", {**body, "stream": stream})
        told = [e for e in sse(reply.body) if isinstance(e, dict)][-1] if stream else reply.json
        output = told["response"]["output"] if stream else told["output"]
        assert [item["status"] for item in output] == ["completed", "incomplete"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_header_names_what_of_a_tool_binds_nothing(port: int, path: str, stream: bool) -> None:
    parts = {"größe": {"type": "any"}, "free": True}
    parameters = {"type": "object", "properties": parts}
    text = json.dumps(ROUTES[path])
    body = json.loads(text.replace(json.dumps(PARAMETERS), json.dumps(parameters)))
    reply = post(port, path, {**body, "stream": stream})
    assert reply.status == 200, reply.body
    assert reply.headers["x-uma-open"] == "read_file#/properties/gr%C3%B6%C3%9Fe type"
    plain = post(port, path, {**ROUTES[path], "stream": stream})
    assert "x-uma-open" not in plain.headers


def test_parameters_that_are_no_schema_name_the_tool(port: int) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": [1]}}
    reply = post(port, "/v1/chat/completions", {**OPENAI, "tools": [tool]})
    assert reply.status == 400
    assert "tools[0].function.parameters" in reply.json["error"]["message"]
    assert "odd" in reply.json["error"]["message"]


ONE_CALL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**OPENAI, "parallel_tool_calls": False},
    "/v1/responses": {
        "input": "What does it say?", "tools": [{"type": "function", **FUNCTION}],
        "parallel_tool_calls": False,
    },
    "/v1/messages": {
        **ANTHROPIC, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a daemon whose model calls the tool twice, whatever binds it."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": f"{CALL}\n{CALL}"}
    path = tmp_path_factory.mktemp("twice")
    with DaemonProcess(path, n_ctx=4096, http="127.0.0.1:0", environment=given) as daemon:
        yield port_of(daemon)


@pytest.mark.parametrize("path", ONE_CALL)
@pytest.mark.parametrize("stream", [True, False])
def test_without_parallel_calls_there_is_one(twice: int, path: str, stream: bool) -> None:
    more = {key: ONE_CALL[path][key] for key in ("tool_choice", "parallel_tool_calls")
            if key in ONE_CALL[path]}  # fmt: skip
    free = {key: value for key, value in ONE_CALL[path].items() if key not in more}
    for body, count in ((free, 2), (ONE_CALL[path], 1)):
        reply = post(twice, path, {**body, "stream": stream})
        assert len(names_of(path, reply.body, stream)) == count, reply.body


def names_of(path: str, body: bytes, stream: bool) -> list[str]:
    """Names of the tools that an answer calls."""
    events = [each for each in sse(body) if isinstance(each, dict)] if stream else []
    if path == "/v1/messages":
        blocks = [e.get("content_block", {}) for e in events] or json.loads(body)["content"]
        return [block["name"] for block in blocks if block.get("type") == "tool_use"]
    if path == "/v1/responses":
        response = events[-1]["response"] if stream else json.loads(body)
        return [item["name"] for item in response["output"] if item["type"] == "function_call"]
    choices = [c for event in events or [json.loads(body)] for c in event["choices"]]
    parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    calls = [call["function"] for part in parts for call in part.get("tool_calls") or ()]
    return [call["name"] for call in calls if call.get("name")]
