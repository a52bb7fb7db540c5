"""Bodies that are encoded or too large, old clients, and what is told without a key."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import everything, gateway, post
from tests.support.http_client import ask, port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from umaserve.gateway import guard

KEY = "a-key-of-the-editor"
ORIGIN = "http://localhost:3000"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with gateway(origins=(ORIGIN,)) as port:
        yield port


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0", n_ctx=256) as daemon:
        yield daemon


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "gzip, br"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/tokenize"])
def test_encoded_bodies_are_refused_by_name(port: int, encoding: str, path: str) -> None:
    reply = post(port, path, gzip.compress(b"{}"), Content_Encoding=encoding)
    assert (reply.status, reply.headers["accept-encoding"]) == (415, "identity")
    assert encoding.lower().encode() in reply.body
    assert post(port, path, b"{", Content_Encoding="identity").status == 400


@pytest.mark.parametrize("size", [1_200_000, 20_000_000])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_client_sees_why_its_body_is_refused(port: int, size: int, chunked: bool) -> None:
    """As most clients do it: all is sent before anything is read."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    body: Any = b"x" * size
    headers = {} if chunked else {"content-length": str(size)}
    data = (body[at : at + 65536] for at in range(0, size, 65536)) if chunked else body
    connection.request("POST", "/v1/completions", data, headers, encode_chunked=chunked)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_refused_body_that_never_ends_is_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "READ_ON_S", 0.2)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n"
    for more in (b"", b"Expect: 100-continue\r\n"):
        with socket.create_connection(("127.0.0.1", port), 60) as sock:
            sock.sendall(head[:-2] + more + b"\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_old_clients_get_no_chunks(daemon: DaemonProcess, path: str) -> None:
    asked = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    for stream in (True, False):
        body = json.dumps({**asked, "stream": stream}).encode()
        head = f"POST {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port_of(daemon)), 60) as sock:
            sock.sendall(head + body)
            start, _, answer = everything(sock).partition(b"\r\n\r\n")
        assert start.startswith(b"HTTP/1.1 200 ") and b"chunked" not in start.lower()
        if stream:
            end = b"}\n\n" if path == "/completion" else b"data: [DONE]\n\n"
            assert answer.startswith(b"data: {") and answer.endswith(end)
        else:
            assert json.loads(answer)


@pytest.mark.parametrize(
    "asked", ["x-stainless-lang, x-stainless-retry-count", "anthropic-version,x-api-key", "X-Any"]
)
def test_a_page_that_may_ask_may_send_any_header(port: int, asked: str) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    connection.request("OPTIONS", "/v1/messages", headers={"Origin": ORIGIN, **preflight})
    response = connection.getresponse()
    assert response.status == 204 and not response.read()
    assert response.getheader("access-control-allow-headers") == asked
    evil = {"Origin": "http://evil.example", **preflight}
    connection.request("OPTIONS", "/v1/messages", headers=evil)
    refused = connection.getresponse()
    assert refused.status == 403 and refused.getheader("access-control-allow-headers") is None
    connection.close()


def test_health_needs_no_key_and_tells_the_state_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"editor {KEY}\n")
    keys.chmod(0o600)
    with real(tmp_path, http="127.0.0.1:0", n_ctx=256, api_key_file=str(keys)) as daemon:
        for path in ("/health", "/v1/health"):
            for headers in ({}, {"X_Api_Key": "a-key-of-nobody"}):
                reply = ask(daemon, path, **headers)
                assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok"})
            assert json.loads(ask(daemon, path, X_Api_Key=KEY).body)["model"]
            assert post(port_of(daemon), path, {}).status == 401
        assert ask(daemon, "/metrics").status == 401


def test_health_without_a_daemon_and_a_key_tells_the_state_alone() -> None:
    with gateway(keys={KEY: "editor"}) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert response.status == 503 and response.getheader("retry-after")
        assert json.loads(response.read()) == {"status": "unreachable"}
        connection.close()
