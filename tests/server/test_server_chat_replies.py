"""Answers as messages: deltas beside the tokens, the whole message at the end, whatever comes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.chat_questions import joined, templates
from tests.support.server_harness import DaemonProcess, RawClient, Result, eventually
from umaserve.client import Client

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    },
]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "größe.txt"}}\n</tool_call>'
THOUGHT = "<think>\nA file, then.\n</think>\n\n"

Says = Callable[..., "tuple[DaemonProcess, RawClient]"]


@pytest.fixture
def says(tmp_path: Path) -> Iterator[Says]:
    """Starts a daemon whose model is Qwen3 by its template, and says these words."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")

    @contextmanager
    def started(words: str, **environment: str) -> Iterator[tuple[DaemonProcess, RawClient]]:
        given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": words, **environment}
        with DaemonProcess(tmp_path, n_ctx=4096, environment=given) as daemon:
            with daemon.client() as client:
                yield daemon, client
            daemon.stop()

    yield started  # type: ignore[misc]


def ask(client: RawClient, id: str = "a", **fields: Any) -> None:
    client.results[id] = Result()
    client.send(id=id, messages=[{"role": "user", "content": "What does it say?"}], **fields)


def deltas(client: RawClient, id: str = "a") -> list[dict[str, Any]]:
    return [e for e in client.other if e["event"] == "delta" and e["id"] == id]


def test_thoughts_that_nobody_asked_for_are_told_apart(says: Says) -> None:
    with says(THOUGHT + "It says 42.") as (daemon, client):
        eventually(lambda: daemon.info()["model"]["chat"].get("thinks"))
        ask(client, deltas=True, begin=True)
        ask(client, "whole", deltas=True, stream=False)
        ask(client, "plain", begin=True)
        result, whole, plain = client.finish()
        message = {"role": "assistant", "content": "It says 42."}
        for each in (result, whole):
            assert each.eos is not None
            told = each.eos["message"]
            assert told.pop("reasoning_content").strip() == "A file, then." and told == message
        content = "".join(each.get("content", "") for each in deltas(client))
        assert content == "It says 42."
        begun = {e["id"]: e["deltas"] for e in client.other if e["event"] == "begin"}
        assert begun == {"a": True, "plain": False}
        assert plain.eos is not None and "message" not in plain.eos
        assert not deltas(client, "plain") and plain.text == THOUGHT + "It says 42."


def test_a_model_that_cannot_think_is_not_read(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, daemon.client() as client:
        eventually(lambda: "thinks" in daemon.info()["model"]["chat"])
        ask(client, max_tokens=5, deltas=True, begin=True)
        (result,) = client.finish()
        assert result.eos is not None and "message" not in result.eos
        assert [e.get("deltas") for e in client.other] == [False]


def test_a_call_comes_in_deltas_and_whole_at_the_end(says: Says) -> None:
    with says(THOUGHT + "I look. " + CALL) as (_, client):
        ask(client, tools=TOOLS)
        (result,) = client.finish()
        told = deltas(client)
        assert result.text == THOUGHT + "I look. " + CALL  # the tokens are as ever
        assert result.eos is not None and result.eos["reason"] == "tool_calls"
        message = result.eos["message"]
        assert joined(told) == message
        assert message["content"].strip() == "I look."
        assert message["reasoning_content"].strip() == "A file, then."
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "read_file" and call["id"]
        assert json.loads(call["function"]["arguments"]) == {"path": "größe.txt"}
        assert len([e for e in told if "content" in e or "reasoning" in e]) > 1
        # the message goes into the next conversation as it is
        result_of = {"role": "tool", "content": "42", "tool_call_id": call["id"]}
        question = {"role": "user", "content": "What does it say?"}
        client.results["b"] = Result()
        client.send(id="b", messages=[question, message, result_of], tools=TOOLS)
        (after,) = client.finish("b")
        assert after.eos is not None and after.eos["reason"] == "tool_calls"
        assert after.eos["message"]["tool_calls"][0]["id"] != call["id"]


def test_without_tools_and_thinking_there_are_tokens_alone(says: Says) -> None:
    with says(THOUGHT + "Well.") as (_, client):
        ask(client)
        (result,) = client.finish()
        assert result.text == THOUGHT + "Well." and deltas(client) == []
        assert result.eos is not None and result.eos["reason"] == "stop"
        assert "message" not in result.eos


def test_thinking_is_told_apart(says: Says) -> None:
    with says(THOUGHT + "Well.") as (_, client):
        ask(client, thinking=True)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "stop"
        message = result.eos["message"]
        assert joined(deltas(client)) == message and message["content"] == "Well."
        assert message["reasoning_content"].strip() == "A file, then."


def test_an_answer_that_does_not_stream_has_its_message_at_the_end(says: Says) -> None:
    with says(CALL) as (_, client):
        ask(client, tools=TOOLS, stream=False)
        (result,) = client.finish()
        assert deltas(client) == []
        assert result.eos is not None and result.eos["text"] == CALL
        assert result.eos["reason"] == "tool_calls"
        assert result.eos["message"]["tool_calls"][0]["function"]["name"] == "read_file"


def test_a_call_that_is_cut_short(says: Says) -> None:
    with says(CALL) as (_, client):
        ask(client, tools=TOOLS, max_tokens=len(CALL) - 30)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "length"
        message = result.eos["message"]
        assert message["tool_calls"][0].pop("incomplete") is True
        assert joined(deltas(client)) == message
        assert message["tool_calls"][0]["function"]["arguments"].startswith('{"p')


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_a_stop_string_cuts_is_no_end_with_calls(says: Says, stream: bool) -> None:
    with says(CALL) as (_, client):
        ask(client, tools=TOOLS, stop="größe", stream=stream)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "stop"
        assert result.eos["stop"] == "größe"
        assert result.eos["message"]["tool_calls"][0]["incomplete"] is True


def test_a_call_that_the_model_leaves_is_no_end_with_calls(says: Says) -> None:
    with says(CALL[:-30]) as (_, client):
        ask(client, tools=TOOLS)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "stop"


def test_a_call_that_is_whole_when_the_limit_cuts_its_end(says: Says) -> None:
    with says(CALL) as (_, client):
        ask(client, tools=TOOLS, max_tokens=len(CALL) - len("</tool_call>"))
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "length"
        (call,) = result.eos["message"]["tool_calls"]
        assert "incomplete" not in call
        assert json.loads(call["function"]["arguments"]) == {"path": "größe.txt"}


def test_tools_whose_calls_no_word_begins_are_served(tmp_path: Path) -> None:
    template = next(path for path in templates() if path.stem == "openai-gpt-oss-120b")
    words = "<|channel|>final<|message|>It says 42."
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": words}
    started = DaemonProcess(tmp_path, n_ctx=4096, environment=given)
    with started as daemon, daemon.client() as client:
        ask(client, tools=TOOLS)
        (result,) = client.finish()
        assert result.error is None and result.eos is not None
        assert result.eos["message"]["content"] == "It says 42."


def test_what_of_a_tool_binds_nothing_is_told(says: Says) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "any"}, "y": True}}
    tool = {"type": "function", "function": {"name": "read_file", "parameters": parameters}}
    opened = [{"tool": "read_file", "path": "#/properties/x", "keyword": "type"}]
    with says("Well.") as (_, client):
        ask(client, tools=[tool], begin=True)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["open_parts"] == opened
        assert [e["open_parts"] for e in client.other if e["event"] == "begin"] == [opened]
        ask(client, "none", tools=TOOLS)
        (plain,) = client.finish("none")
        assert plain.eos is not None and "open_parts" not in plain.eos


def test_an_answer_by_a_form_beside_tools_is_read_as_content(says: Says) -> None:
    with says('{"city": "Oslo"}') as (_, client):
        for stream in (True, False):
            id = f"s{stream}"
            ask(client, id, tools=TOOLS, json_schema={"type": "object"}, stream=stream)
            (result,) = client.finish(id)
            assert result.eos is not None and result.eos["reason"] == "stop"
            assert result.eos["message"]["content"] == '{"city": "Oslo"}'


def test_what_is_no_call_is_content(says: Says) -> None:
    with says("<tool_call>\nno JSON at all\n</tool_call> and on") as (_, client):
        ask(client, tools=TOOLS)
        (result,) = client.finish()
        assert result.error is None and result.eos is not None
        assert result.eos["reason"] == "stop"
        assert joined(deltas(client)) == result.eos["message"]


def test_a_stop_string_ends_the_message_too(says: Says) -> None:
    with says(THOUGHT + "One. Two.") as (_, client):
        ask(client, thinking=True, stop=". T")
        (result,) = client.finish()
        assert result.text == THOUGHT + "One"
        assert result.eos is not None and result.eos["message"]["content"] == "One"


def test_a_cancelled_request_has_the_message_so_far(says: Says) -> None:
    with says(THOUGHT + "and so on " * 300, FAKE_TICK_MS="5") as (_, client):
        ask(client, thinking=True)
        client.wait_tokens("a", 100)
        client.send(type="cancel", id="a")
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "cancel"
        assert joined(deltas(client)) == result.eos["message"]
        assert result.eos["message"]["content"].startswith("and so on")


def test_the_engine_dies_within_a_call(says: Says) -> None:
    with says(THOUGHT + CALL, FAKE_TICK_MS="5") as (daemon, client):
        ask(client, tools=TOOLS)
        client.wait_tokens("a", len(THOUGHT) + 20)
        psutil.Process(daemon.engine_pid()).kill()
        (result,) = client.finish()
        assert result.text == THOUGHT + CALL
        assert result.eos is not None and result.eos["reason"] == "tool_calls"
        assert joined(deltas(client)) == result.eos["message"]


def test_a_parser_that_hangs_costs_its_request_alone(says: Says) -> None:
    with says(THOUGHT + CALL, FAKE_TICK_MS="5") as (daemon, client):
        ask(client, tools=TOOLS)
        client.wait_tokens("a", 20)
        for process in eventually(lambda: chat_processes(daemon), "uma-chat"):
            process.send_signal(signal.SIGSTOP)
        client.ask("b", "hello", max_tokens=5)
        first, second = client.finish()
        assert second.error is None and len(second.tokens) == 5
        # a question of its end, or the one before, found a process that did not answer
        assert first.text == THOUGHT + CALL
        assert first.eos is not None
        assert first.eos["reason"] in ("tool_calls", "error")
        for process in chat_processes(daemon):
            process.send_signal(signal.SIGCONT)
        ask(client, "c", tools=TOOLS)
        (third,) = client.finish("c")
        assert third.eos is not None and third.eos["reason"] == "tool_calls"


def chat_processes(daemon: DaemonProcess) -> list[psutil.Process]:
    return [p for p in daemon.children() if p.status() != "zombie" and "uma-chat" in p.name()]


def test_clients_of_the_package_have_the_message(says: Says) -> None:
    with says("I look. " + CALL) as (daemon, _), Client(daemon.path) as client:
        stream = client.generate(messages=[{"role": "user", "content": "Look."}], tools=TOOLS)
        assert "".join(event.text for event in stream) == "I look. " + CALL
        assert stream.eos is not None and stream.eos.reason == "tool_calls"
        assert stream.eos.message is not None
        assert stream.eos.message["tool_calls"][0]["function"]["name"] == "read_file"


def test_render_says_what_messages_become(says: Says) -> None:
    with says("x") as (daemon, client):
        messages = [{"role": "user", "content": "hi"}]
        client.send(type="render", id="r", messages=messages, tools=TOOLS, thinking=False)
        answer = client.answer("rendered")
        assert answer["id"] == "r" and "read_file" in answer["prompt"]
        assert answer["prompt"].endswith("<think>\n\n</think>\n\n")
        assert answer["markup"] == [] and answer["plain"] == []  # the fake has no control tokens
        client.send(type="render", messages=[{"role": "tool", "content": "x"}, *messages])
        assert client.answer("rendered")["prompt"]
        client.send(type="render", id="bad")
        assert client.answer("rendered")["message"] == '"messages" is missing'
        chat = eventually(lambda: daemon.info()["model"]["chat"], "the template was looked at")
        assert chat["thinks"] and chat["supports_tools"]


def test_a_template_that_cannot_be_used_is_told_at_load(says: Says, tmp_path: Path) -> None:
    with says("x", FAKE_TEMPLATE="{% for") as (daemon, client):
        eventually(lambda: "conversations are refused" in daemon.log, "a warning")
        assert "cannot be used" in daemon.info()["model"]["chat"]["error"]
        ask(client)
        (result,) = client.finish()
        assert result.error is not None and result.error["code"] == "E_RUNTIME_003"
