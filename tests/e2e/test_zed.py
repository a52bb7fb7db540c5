"""Requests as Zed makes them, with settings that ``umaserve connect zed`` wrote.

Zed itself is not run: its sources were read on 2026-11-26.  Of answers it reads the fields below,
whose types are strict, and of a stream the lines that begin with ``data: ``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.chat_questions import templates
from tests.support.gateway import post
from tests.support.http_client import ask, port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from umaserve.cli import main
from umaserve.llama.builds import cache_root

AGENT = "Zed/1.3.0 (linux; x86_64)"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
CALL = {"name": "read_file", "arguments": {"path": "a.txt"}}
SAID = f"<think>\nA file.\n</think>\n\nI look. <tool_call>\n{json.dumps(CALL)}\n</tool_call>"
STOPS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]


class Context(msgspec.Struct):
    n_ctx: int


class Model(msgspec.Struct):
    id: str
    meta: Context
    status: Any = None  # where there is one, Zed takes the server for a router of models


class Models(msgspec.Struct):
    data: list[Model]


class Caps(msgspec.Struct):
    supports_tools: bool = False
    supports_tool_calls: bool = False


class Modalities(msgspec.Struct):
    vision: bool


class Props(msgspec.Struct):
    default_generation_settings: Context
    chat_template_caps: Caps
    modalities: Modalities


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    index: int
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    model: str
    object: str
    choices: list[Choice]
    usage: Usage | None = None


class Text(msgspec.Struct):
    text: str
    finish_reason: str | None


class Completion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Text]
    usage: Usage


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its model is Qwen3 by its template, and calls a tool."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": SAID}
    path = tmp_path_factory.mktemp("scripted")
    with DaemonProcess(path, n_ctx=4096, http="127.0.0.1:0", environment=given) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("bundled"), http="127.0.0.1:0") as daemon:
        yield daemon


def connected(daemon: DaemonProcess, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings of a Zed that had none."""
    monkeypatch.setenv("UMA_CACHE_DIR", str(cache_root()))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.delenv("UMA_STATE_DIR", raising=False)
    url = f"http://127.0.0.1:{port_of(daemon)}"
    assert main(["connect", "zed", "--yes", "--url", url]) == 0
    return json.loads((home / ".config/zed/settings.json").read_text("utf-8"))


def test_what_it_is_told_is_what_it_finds(
    scripted: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = connected(scripted, tmp_path, monkeypatch)["language_models"]["llama.cpp"]
    assert settings["api_url"] == f"http://127.0.0.1:{port_of(scripted)}"
    (told,) = settings["available_models"]
    headers = {"accept": "application/json", "user_agent": AGENT}
    (found,) = msgspec.json.decode(
        ask(scripted, "/v1/models", **headers).body, type=Models
    ).data  # fmt: skip
    props = msgspec.json.decode(ask(scripted, "/props", **headers).body, type=Props)
    # of two that differ in their names, it would list both
    assert found.id == told["name"] and found.status is None
    context = props.default_generation_settings.n_ctx
    assert told["max_tokens"] == context == found.meta.n_ctx > 0
    caps = props.chat_template_caps
    assert told["supports_tools"] is (caps.supports_tools or caps.supports_tool_calls) is True
    assert told["supports_images"] is props.modalities.vision is False


def streamed(daemon: DaemonProcess, messages: list[Any], **more: Any) -> list[Chunk]:
    """The events of an answer to a turn of the agent panel."""
    function = {"name": "read_file", "description": "Reads a file.", "parameters": PARAMETERS}
    body = {
        "model": daemon.info()["model"]["name"], "messages": messages, "stream": True,
        "tools": [{"type": "function", "function": function}], "tool_choice": "auto",
        "stream_options": {"include_usage": True}, **more,
    }  # fmt: skip
    reply = post(port_of(daemon), "/v1/chat/completions", body, user_agent=AGENT)
    assert reply.status == 200, reply.body
    lines = reply.body.decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [msgspec.json.decode(event, type=Chunk) for event in data]


def test_turns_of_its_agent(scripted: DaemonProcess) -> None:
    system = {"role": "system", "content": "You help."}
    parts = [{"type": "text", "text": "What"}, {"type": "text", "text": "does it say?"}]
    turn = [system, {"role": "user", "content": parts}]
    chunks = streamed(scripted, turn, temperature=0.2)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.reasoning_content or "" for delta in deltas).strip() == "A file."
    assert "".join(delta.content or "" for delta in deltas).strip() == "I look."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    names = [call.function.name for call in calls if call.function and call.function.name]
    arguments = [(call.function and call.function.arguments) or "" for call in calls]
    assert (names, json.loads("".join(arguments))) == (["read_file"], CALL["arguments"])
    # only this ending makes it look at the calls
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    function = {"name": "read_file", "arguments": json.dumps(CALL["arguments"])}
    call = {"id": calls[0].id, "type": "function", "function": function}
    for content in ("42", [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}], []):
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "content": content, "tool_call_id": calls[0].id}
        assert streamed(scripted, [*turn, asked, result])


def test_prediction_at_the_cursor(
    bundled: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicts = connected(bundled, tmp_path, monkeypatch)["edit_predictions"]
    assert predicts["provider"] == "open_ai_compatible_api"
    settings = predicts["open_ai_compatible_api"]
    assert settings["prompt_format"] == "qwen"
    before, behind = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
    body = {
        "model": settings["model"], "max_tokens": settings["max_output_tokens"], "stop": STOPS,
        "prompt": f"<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>",
    }  # fmt: skip
    port = port_of(bundled)
    address, _, path = settings["api_url"].removeprefix("http://").partition("/")
    connection = HTTPConnection(address, timeout=60)
    headers = {"Content-Type": "application/json", "User-Agent": AGENT}
    connection.request("POST", f"/{path}", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    answer = msgspec.json.decode(response.read(), type=Completion)
    connection.close()
    assert answer.object == "text_completion" and len(answer.choices) == 1
    assert 0 < answer.usage.completion_tokens <= settings["max_output_tokens"]
    # the marks around the gap were read as marks: so many tokens has the prompt of the texts alone
    alone = {"suffix": behind, "prompt": before, "max_tokens": 1}
    of_texts = post(port, "/v1/completions", alone).json["usage"]["prompt_tokens"]
    assert answer.usage.prompt_tokens == of_texts
