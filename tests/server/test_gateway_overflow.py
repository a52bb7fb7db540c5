"""Conversations that are far too long: agents are told so in words on which they shorten them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess
from umaserve.protocol.tables.chat_fields import MAX_MESSAGES

N_CTX = 2048
SIZES = (3000, 100_000, 300_000, 5_000_000)  # bytes: too many tokens, for a prompt, for a frame


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    path = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(path, n_ctx=N_CTX, http="127.0.0.1:0") as daemon:
        yield daemon


def messages(size: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x" * size}]


ASKED = {
    "/v1/chat/completions": lambda size: {"messages": messages(size)},
    "/v1/completions": lambda size: {"prompt": "x" * size},
    "/v1/responses": lambda size: {"input": "x" * size},
    "/v1/messages": lambda size: {"messages": messages(size), "max_tokens": 9},
    "/api/chat": lambda size: {"messages": messages(size)},
    "/api/generate": lambda size: {"prompt": "x" * size},
    "/completion": lambda size: {"prompt": "x" * size},
}
WORDS = {
    "/v1/messages": "prompt is too long: ",
    "/api/chat": "the input length exceeds the context length",
    "/api/generate": "the input length exceeds the context length",
    "/completion": "exceeds the available context size",
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_too_long(
    daemon: DaemonProcess, path: str, size: int, stream: bool
) -> None:
    reply = post(port_of(daemon), path, {**ASKED[path](size), "stream": stream})
    assert reply.status == 400
    told = reply.json if path.startswith("/api/") else reply.json["error"]
    text = told["error"] if path.startswith("/api/") else told["message"]
    assert WORDS.get(path, "maximum context length is 2048 tokens") in text
    assert told["n_ctx"] == N_CTX and told["n_prompt_tokens"] > N_CTX
    if size == SIZES[0]:
        assert 3000 <= told["n_prompt_tokens"] < 3100
    if path.startswith("/v1/") and path != "/v1/messages":
        assert told["code"] == "context_length_exceeded"


@pytest.mark.parametrize("size", SIZES[1:])
def test_its_tokens_cannot_be_counted(daemon: DaemonProcess, size: int) -> None:
    reply = post(port_of(daemon), "/v1/messages/count_tokens", {"messages": messages(size)})
    assert reply.json["error"]["n_prompt_tokens"] > N_CTX == reply.json["error"]["n_ctx"]


def test_more_messages_than_there_may_be(daemon: DaemonProcess) -> None:
    many = [*messages(1) * (MAX_MESSAGES + 1), *messages(9000)]
    error = post(port_of(daemon), "/v1/chat/completions", {"messages": many}).json["error"]
    assert error["code"] == "context_length_exceeded" and error["n_prompt_tokens"] > N_CTX


def test_others_on_the_connection_are_served_on(daemon: DaemonProcess) -> None:
    body = {"prompt": "x" * 300_000}
    assert post(port_of(daemon), "/v1/completions", body).status == 400
    assert post(port_of(daemon), "/v1/completions", {"prompt": "x", "max_tokens": 2}).status == 200
    assert "E_PROTO_002" not in daemon.log


def test_pictures_that_are_not_read_make_no_body_too_long(daemon: DaemonProcess) -> None:
    url = {"url": "data:image/png;base64," + "A" * 2_000_000}
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
    reply = post(port_of(daemon), "/v1/chat/completions", body)
    assert reply.status == 200 and reply.json["uma_unread"] == ["image_url"]


def test_the_socket_tells_the_same(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for size, least in ((3000, 3000), (100_000, 25_000)):
            for field in ({"prompt": "x" * size}, {"messages": messages(size)}):
                client.send(id="a", **field)
                error = client.answer("error")
                assert error["n_prompt_tokens"] >= least and error["n_ctx"] == N_CTX
        client.send(id="b", prompt="x", max_tokens=0.5)
        assert "n_ctx" not in client.answer("error")


def test_a_limit_that_was_set_is_the_body_s(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0", max_frame_bytes=100_000) as daemon:
        for size, status in ((160_000, 400), (200_000, 413)):
            reply = post(port_of(daemon), "/v1/completions", {"prompt": "x" * size})
            assert reply.status == status
            assert ("n_ctx" in json.loads(reply.body)["error"]) == (status == 400)
