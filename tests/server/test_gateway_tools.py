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
