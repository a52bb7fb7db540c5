"""Histories of agents over HTTP: no part of one ends it, and what is unread is told."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat_questions import templates
from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess
from umaserve.protocol.history import PICTURE, ROLE, TEXT_ONLY

CUT = '{"path": "a'
PNG = (  # the beginning of a file of 640 times 480 pixels
    b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x02\x80\0\0\x01\xe0" + bytes(64)
)
NO_ERROR = b'"error":null'
USER = {"role": "user", "content": "Go on."}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its template goes through the arguments of a call one by one."""
    template = next(path for path in templates() if path.stem == "Qwen3-Coder")
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SAYS": "Yes."}
    path = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(path, n_ctx=8192, http="127.0.0.1:0", environment=given) as daemon:
        yield daemon


def called(arguments: Any) -> dict[str, Any]:
    function = {"name": "read", "arguments": arguments}
    return {"id": "1", "type": "function", "function": function}


def openai(*messages: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [USER, *messages, USER]}


def anthropic(*messages: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 9, "messages": [USER, *messages, USER]}


def items(*found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [USER, *found, USER]}


def ollama(*messages: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/api/chat", {"messages": [USER, *messages, USER]}


def said(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


RESULT = {"role": "tool", "tool_call_id": "1", "content": "42"}
USE = {"type": "tool_use", "id": "1", "name": "read"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PDF = {"type": "document", "source": {"type": "base64", "data": "AA=="}}
SERVER = {"type": "server_tool_use", "id": "2", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "2", "content": []}
HISTORIES: list[tuple[tuple[str, dict[str, Any]], list[str]]] = [
    (openai({"role": "assistant", "content": None, "tool_calls": [called("")]}, RESULT), []),
    (openai({"role": "assistant", "content": None, "tool_calls": [called(CUT)]}, RESULT), []),
    (openai({"role": "assistant", "tool_calls": [
        {"id": "1", "type": "custom", "custom": {"name": "read", "input": CUT}}]}, RESULT), []),
    (openai(said("user", {"type": "image_url", "image_url": {"url": "http://x/y"}}, "and")),
     ["image_url"]),
    (openai(said("user", {"type": "input_audio"}, {"type": "file"}, {})),
     ["input_audio", "file", "unknown"]),
    (openai(said("critic", {"type": "text", "text": "No."})), ["critic"]),
    (openai(said("system", {"type": "image"})), ["image"]),
    (anthropic(said("assistant", {**USE, "input": CUT}),
               said("user", {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]})),
     ["image"]),
    (anthropic(said("assistant", {**USE, "input": None}),
               said("user", {"type": "tool_result", "tool_use_id": "1", "is_error": True,
                             "content": [PDF]})), ["document"]),
    (anthropic(said("assistant", SERVER, FOUND, {"type": "text", "text": "So."})),
     ["server_tool_use", "web_search_tool_result"]),
    (anthropic(said("user", IMAGE, PDF), {"role": "assistant", "content": None}),
     ["image", "document"]),
    (anthropic(said("critic", {"type": "of_next_year"})), ["critic", "of_next_year"]),
    (items({"type": "function_call", "call_id": "1", "name": "read", "arguments": ""},
           {"type": "function_call_output", "call_id": "1", "output": "42"}), []),
    (items({"type": "function_call", "call_id": "1", "name": "read", "arguments": CUT},
           {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}),
     ["input_image"]),
    (items({"type": "web_search_call", "id": "ws_1", "status": "completed"},
           {"type": "message", "role": "assistant", "content": [
               {"type": "output_text", "text": "So."}]}), ["web_search_call"]),
    (items({"type": "computer_call", "call_id": "1"},
           {"type": "computer_call_output", "call_id": "1", "output": {}}),
     ["computer_call", "computer_call_output"]),
    (items(said("critic", {"type": "input_file", "file_id": "f"})), ["critic", "input_file"]),
    (ollama({"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "read", "arguments": CUT}}]}, RESULT), []),
    (ollama({"role": "user", "content": "", "images": ["AA==", "AA=="]}), ["image", "image"]),
    (ollama({"role": "control", "content": "thinking"}), ["control"]),
    (("/api/generate", {"prompt": "x", "images": ["AA=="]}), ["image"]),
]  # fmt: skip


def told_last(path: str, body: bytes) -> dict[str, Any]:
    """The object of a stream that says what is unread."""
    if path.startswith("/api/"):
        found: dict[str, Any] = json.loads(body.splitlines()[-1])
        return found
    events = [event for event in sse(body) if event != "[DONE]"]
    told = {
        "/v1/chat/completions": events[-1],
        "/v1/messages": events[0].get("message"),
        "/v1/responses": events[-1].get("response"),
    }[path]
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize(("asked", "unread"), HISTORIES)
@pytest.mark.parametrize("stream", [False, True])
def test_no_part_of_a_history_ends_the_conversation(
    daemon: DaemonProcess, asked: tuple[str, dict[str, Any]], unread: list[str], stream: bool
) -> None:
    path, body = asked
    reply = post(port_of(daemon), path, {**body, "stream": stream})
    assert reply.status == 200 and b'"error"' not in reply.body.replace(NO_ERROR, b""), reply.body
    told = told_last(path, reply.body) if stream else reply.json
    assert told.get("uma_unread", []) == unread


@pytest.mark.parametrize(("asked", "unread"), [h for h in HISTORIES if h[0][0] == "/v1/messages"])
def test_tokens_of_such_a_history_are_counted(
    daemon: DaemonProcess, asked: tuple[str, dict[str, Any]], unread: list[str]
) -> None:
    reply = post(port_of(daemon), "/v1/messages/count_tokens", asked[1])
    assert reply.status == 200 and reply.json["input_tokens"] > 10
    assert reply.json.get("uma_unread", []) == unread


def test_the_model_is_told_in_words(daemon: DaemonProcess) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    history = openai(
        said("user", picture), {"role": "assistant", "tool_calls": [called(CUT)]}, RESULT,
        said("critic", {"type": "text", "text": "No."}),
    )[1]  # fmt: skip
    reply = post(port_of(daemon), "/apply-template", history).json
    assert PICTURE.format("", TEXT_ONLY) in reply["prompt"] and "AAAA" not in reply["prompt"]
    assert ROLE.format("critic") + "\nNo." in reply["prompt"] and CUT in reply["prompt"]
    assert reply["uma_unread"] == ["image_url", "critic"]


SHOT = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{SHOT}"
OF_ANTHROPIC = {"type": "image", "source": {
    "type": "base64", "media_type": "image/png", "data": SHOT}}  # fmt: skip
PROMPT = {"prompt": {"prompt_string": "See <__media__>.", "multimodal_data": [SHOT]}}
PICTURES = {
    "chat": openai(said("user", {"type": "image_url", "image_url": {"url": URL}})),
    "items": items({"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": URL}]}),
    "output": items({"type": "function_call", "call_id": "1", "name": "read", "arguments": ""},
                    {"type": "function_call_output", "call_id": "1", "output": [
                        {"type": "input_image", "image_url": URL}]}),
    "anthropic": anthropic(said("user", OF_ANTHROPIC)),
    "result": anthropic(said("assistant", {**USE, "input": {}}), said("user", {
        "type": "tool_result", "tool_use_id": "1", "content": [OF_ANTHROPIC]})),
    "ollama": ollama({"role": "user", "content": "Look:", "images": [SHOT]}),
    "generate": ("/api/generate", {"prompt": "x", "images": [SHOT]}),
    "raw": ("/api/generate", {"prompt": "x", "raw": True, "images": [SHOT]}),
    "completion": ("/completion", PROMPT),
    "completions": ("/v1/completions", PROMPT),
    "several": ("/completions", {"prompt": ["x", PROMPT["prompt"]]}),
}  # fmt: skip


@pytest.mark.parametrize("dialect", PICTURES)
def test_a_picture_can_be_refused_in_every_dialect(daemon: DaemonProcess, dialect: str) -> None:
    path, body = PICTURES[dialect]
    reply = post(port_of(daemon), path, {**body, "stream": False}, **{"X-UMA-Images": "refuse"})
    assert reply.status == 400 and b"text only" in reply.body
    reply = post(port_of(daemon), path, {**body, "stream": False})
    assert reply.status == 200
    assert reply.headers["x-uma-unread"] == reply.json["uma_unread"][0]


@pytest.mark.parametrize("dialect", ["chat", "anthropic", "result", "ollama", "completion"])
def test_the_model_is_told_how_large_a_picture_was(daemon: DaemonProcess, dialect: str) -> None:
    path, body = PICTURES[dialect]
    reply = post(port_of(daemon), path, {**body, "stream": False, "n_predict": 1})
    assert reply.status == 200
    tokens = reply.json.get("usage", reply.json)
    assert tokens
    if path == "/completion":
        told = f"See {PICTURE.format('640×480 ', TEXT_ONLY)}."
        assert reply.json["tokens_evaluated"] == len(told.encode())  # a byte is a token here
        assert reply.json["prompt"] == body["prompt"]["prompt_string"]
    elif path == "/v1/chat/completions":
        told = post(port_of(daemon), "/apply-template", body).json["prompt"]
        assert PICTURE.format("640×480 ", TEXT_ONLY) in told and SHOT not in told


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt_string": "x", "multimodal_data": [SHOT]}, b"for each <__media__>"),
        ({"prompt_string": "<__media__>" * 2, "multimodal_data": [SHOT]}, b"prompt: 2, not 1"),
        ({"prompt_string": "<__media__>", "multimodal_data": []}, b"prompt: 1, not 0"),
        ({"prompt_string": "<__media__>", "multimodal_data": SHOT}, b"in base64"),
        ({"prompt_string": ["x"], "multimodal_data": [SHOT]}, b"a string where"),
    ],
)
def test_markers_and_pictures_have_to_agree(
    daemon: DaemonProcess, prompt: dict[str, Any], words: bytes
) -> None:
    reply = post(port_of(daemon), "/completion", {"prompt": prompt})
    assert reply.status == 400 and words in reply.body
    refused = post(port_of(daemon), "/embedding", {"content": PROMPT["prompt"]})
    assert refused.status == 400 and b"text alone" in refused.body


def test_an_agent_goes_on_with_its_screenshots(daemon: DaemonProcess) -> None:
    """Each turn adds a screenshot of two megabytes to the history, as agents at a desktop do."""
    large = base64.b64encode(PNG + bytes(2_000_000)).decode()
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": large}}
    history: list[dict[str, Any]] = [{"role": "user", "content": "Open the settings."}]
    for turn in range(6):
        body = {"max_tokens": 9, "messages": history}
        reply = post(port_of(daemon), "/v1/messages", body)
        assert reply.status == 200 and reply.json["content"][0]["text"]
        assert reply.json.get("uma_unread", []) == ["image"] * turn
        use = {"type": "tool_use", "id": str(turn), "name": "screenshot", "input": {}}
        result = {"type": "tool_result", "tool_use_id": str(turn), "content": [shot]}
        history += [said("assistant", use), said("user", result)]


@pytest.mark.parametrize("stream", [False, True])
def test_the_socket_tells_it_too(daemon: DaemonProcess, stream: bool) -> None:
    messages = [said("user", {"type": "image", "data": "AAAA"}), said("critic")]
    with daemon.client() as client:
        client.send(id="x", messages=messages, begin=True, stream=stream)
        assert client.answer("begin")["unread"] == ["image", "critic"]
        assert client.answer("eos")["unread"] == ["image", "critic"]
        client.send(id="r", type="render", messages=messages)
        assert client.answer("rendered")["unread"] == ["image", "critic"]
        client.send(id="y", messages=[USER], begin=True)
        assert "unread" not in client.answer("eos")
