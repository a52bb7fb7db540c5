"""A client of HTTP that leaves: whatever its route has asked of the daemon is cancelled there."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import begun, gateway, post
from tests.support.http_client import port_of
from tests.support.server_harness import TIMEOUT_S, DaemonProcess, eventually
from umaserve.gateway.app import ENDPOINTS
from umaserve.gateway.families.openapi import openapi_endpoint
from umaserve.gateway.translate.endpoint import Endpoint

ALL = (*ENDPOINTS, openapi_endpoint(ENDPOINTS))
GAP = {"prefix": 65, "suffix": 66, "middle": 67}
FIELDS: dict[str, Any] = {
    "prompt": "x", "content": ["x", 65], "input": "x", "input_prefix": "x", "input_suffix": "y",
    "input_extra": [{"text": "z"}], "tokens": [65], "max_tokens": 5, "with_pieces": True,
    "messages": [{"role": "user", "content": "x"}], "model": "model.gguf", "id": "x",
    "priority": "background", "logit_bias": {"x": 1}, "suffix": "y",
}  # fmt: skip
MOST_ASKED = 8  # questions of one route


class Between:
    """Stands between gateway and daemon, and holds back what is asked after ``passes`` questions.

    What a new connection asks first does not count; a fake engine embeds nothing.
    """

    def __init__(self, listening: socket.socket, daemon: str) -> None:
        self._listening, self._daemon = listening, daemon
        self.restart(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def restart(self, passes: int) -> None:
        self.passes = passes
        self.held: dict[str, str] = {}  # types by id
        self.cancelled: set[str] = set()

    def is_cancelled(self, id: str) -> bool:
        return id in self.cancelled

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(self._daemon)
            for ends in ((sock, behind, self._asked), (behind, sock, self._answered)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, look: Any) -> None:
        data = b""
        while part := source.recv(1 << 16):
            data += part
            while len(data) >= 4 and len(data) >= (end := 4 + struct.unpack("<I", data[:4])[0]):
                message, data = look(json.loads(data[4:end])), data[end:]
                if message is not None:
                    body = json.dumps(message).encode()
                    to.sendall(struct.pack("<I", len(body)) + body)
        to.shutdown(socket.SHUT_WR)

    def _asked(self, message: dict[str, Any]) -> dict[str, Any] | None:
        kind, id = message.get("type", "generate"), message.get("id", "")
        if kind == "cancel":
            self.cancelled.add(id)
        elif kind != "ping" and not message.get("relays"):
            if not self.passes or kind in ("embed", "load", "unload"):
                self.held[id] = kind
                return None
            self.passes -= 1
        return message

    def _answered(self, message: dict[str, Any]) -> dict[str, Any]:
        model = (message.get("info") or {}).get("model")
        if model:
            model["gap"] = GAP
        return message


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


@contextmanager
def between(daemon: DaemonProcess, path: Path) -> Iterator[tuple[int, Between]]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        proxy = Between(listening, daemon.path)
        with gateway(str(path), model_dirs=(str(daemon.directory),)) as port:
            yield port, proxy


def sent(port: int, endpoint: Endpoint, stream: bool) -> socket.socket:
    path = endpoint.path.replace("{", "").replace("}", "")
    fields = {**FIELDS, "stream": stream}
    if path.endswith("/responses"):
        del fields["prompt"]  # it has another meaning there
    body = json.dumps(fields).encode() if endpoint.method == "POST" else b""
    head = f"{endpoint.method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n"
    sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def held_by(port: int, proxy: Between, endpoint: Endpoint, stream: bool) -> list[str]:
    """What was held of a route, one question further each time, until it asks no more."""
    found: list[str] = []
    for passes in range(MOST_ASKED):
        proxy.restart(passes)
        with sent(port, endpoint, stream) as sock:
            eventually(lambda: proxy.held or select.select([sock], [], [], 0)[0], endpoint.path)
            if not proxy.held:
                return found
        held = dict(proxy.held)
        found += held.values()
        for id, kind in held.items():
            if kind != "priority":  # its id is that of the request that moves
                what = f"{kind} of {endpoint.path} is cancelled"
                eventually(partial(proxy.is_cancelled, id), what)
        if {"embed", "load", "unload"} & {*held.values()}:
            return found
    raise AssertionError(f"{endpoint.path} asks without an end")


def test_what_a_route_has_asked_is_cancelled_when_its_client_leaves(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    asked: dict[str, list[str]] = {}
    with between(daemon, tmp_path / "between") as (port, proxy):
        for endpoint in ALL:
            for stream in {False, "stream" in endpoint.fields}:
                asked.setdefault(endpoint.path, []).extend(held_by(port, proxy, endpoint, stream))
    kinds = {kind for held in asked.values() for kind in held}
    assert kinds == {
        "generate", "info", "metrics", "tokenize", "detokenize", "render", "embed", "load",
        "unload", "priority",
    }  # fmt: skip
    of_texts = {path for path, held in asked.items() if {"generate", "embed"} & {*held}}
    names = {
        "generate", "completions", "completion", "responses", "messages", "chat", "embeddings",
        "embedding", "embed", "infill",
    }  # fmt: skip
    assert of_texts == {each.path for each in ENDPOINTS if each.path.split("/")[-1] in names}
    # with a stream and without: the answer's beginning, all other texts, and those of the bias
    assert asked["/infill"].count("tokenize") == 2 * 3
    assert asked["/tokenize"].count("tokenize") == 1


def test_a_client_that_leaves_at_once_has_asked_for_nothing(daemon: DaemonProcess) -> None:
    """Its body and its end come together."""
    for _ in range(20):
        begun(port_of(daemon), "/generate", {"prompt": "x"}).close()
        begun(port_of(daemon), "/tokenize", {"content": "x", "with_pieces": True}).close()
    daemon.idle()
    assert post(port_of(daemon), "/tokenize", {"content": "x"}).json == {"tokens": [120]}
    assert "failed" not in daemon.log


def test_texts_whose_asker_has_cancelled_are_not_tokenised(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for n in range(40):
            client.send(type="tokenize", id=f"t{n}", text="[wait]")
        for n in range(40):
            client.send(type="cancel", id=f"t{n}")
        client.send(type="tokenize", id="last", text="x")
        seen = []
        while not seen or seen[-1].get("id") != "last":
            seen.append(client.receive())
        assert [e["found"] for e in seen if e["event"] == "cancelled"] == [True] * 40
        assert [e["id"] for e in seen if e["event"] == "tokens"] == ["last"]


def test_an_answer_that_is_longer_than_what_may_wait_comes_whole(tmp_path: Path) -> None:
    """It ends no connection, which at the gateway others use."""
    settings = {"max_unsent_bytes": 65536, "max_prompt_bytes": 1 << 20}
    with DaemonProcess(tmp_path, http="127.0.0.1:0", n_ctx=1 << 18, **settings) as daemon:
        text, port = "abcdefgh" * 100_000, port_of(daemon)
        with begun(port, "/generate", {"prompt": "[prompt@100000] x"}) as other:
            eventually(lambda: daemon.info()["sessions"])
            answer = post(port, "/tokenize", {"content": text}).json
            assert bytes(answer["tokens"]).decode() == text
            some = {"tokens": answer["tokens"][:200_000]}
            assert post(port, "/detokenize", some).json["content"] == text[:200_000]
            assert daemon.info()["sessions"] and not select.select([other], [], [], 0)[0]
            named = post(port, "/tokenize", {"content": text[:50_000], "with_pieces": True}).json
            assert "".join(each["piece"] for each in named["tokens"]) == text[:50_000]


def test_token_ids_of_a_text_that_is_too_long_are_not_spelled(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, max_prompt_bytes=10_000) as daemon, daemon.client() as client:
        client.send(type="detokenize", id="d", tokens=[65] * 10_001, with_pieces=True)
        assert client.answer("text")["code"] == "E_LIMIT_001"
        client.send(type="detokenize", id="d", tokens=[65] * 10_000)
        assert len(client.answer("text")["text"]) == 10_000
        client.send(type="tokenize", id="t", text=["x" * 5_000, "y" * 5_001])
        assert client.answer("tokens")["code"] == "E_LIMIT_001"
        client.send(type="tokenize", id="t", text=["ab", "", "c"])
        told = client.answer("tokens")
        assert (told["tokens"], told["counts"]) == ([*b"abc"], [2, 0, 1])
