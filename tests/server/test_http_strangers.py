"""HTTP without keys: the daemon's own user and root may ask, and other users of the machine not."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import gateway, post
from tests.support.http_client import ask, port_of
from tests.support.server_harness import DaemonProcess, eventually, running
from tests.support.strangers import UID, connected_stranger, only_root, said_by_stranger
from umaserve.gateway import http_protocol
from umaserve.gateway.app import ENDPOINTS
from umaserve.protocol import WITHOUT_KEY
from umaserve.system.own_key import own_key, own_key_file
from umaserve.system.tcp_peer import NOBODY, UNTOLD

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells users of TCP sockets")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0")


def asked(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def told(answer: bytes) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else None


@only_root
@linux
def test_another_user_may_not_ask(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    prompt = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    for method, path, body in (
        ("POST", "/generate", prompt), ("POST", "/v1/chat/completions", b"{}"),
        ("GET", "/requests", b""), ("POST", "/unload", b""), ("GET", "/", b""),
        ("GET", "/none", b""), ("POST", "/health", b""),
    ):  # fmt: skip
        status, answer = told(said_by_stranger(port, asked(method, path, body)))
        assert status == 403, path
        assert f"user {UID} " in json.dumps(answer) and "--api-key-file" in json.dumps(answer)
    assert told(said_by_stranger(port, asked("GET", "/health"))) == (200, {"status": "ok"})
    assert ask(daemon, "/health").status == 200
    assert b"unloaded" not in ask(daemon, "/health").body
    lines = [line for line in daemon.log.splitlines() if f"user {UID} " in line]
    assert len(lines) == 1, daemon.log  # however often he comes


@only_root
@linux
def test_every_route_refuses_another_user() -> None:
    with gateway(owner=os.geteuid()) as port:
        for endpoint in ENDPOINTS:
            if endpoint.path in ("/health", "/v1/health"):
                continue
            path = endpoint.path.replace("{", "").replace("}", "")
            data = said_by_stranger(port, asked(endpoint.method, path))
            assert data.split()[1] == b"403", (endpoint.method, endpoint.path)


@only_root
@linux
@pytest.mark.parametrize("left", ["half", "whole"])
def test_who_leaves_at_once_is_not_taken_for_root(left: str, tmp_path: Path) -> None:
    """A socket that its program has closed shows user 0."""
    shut = "sock.shutdown(socket.SHUT_WR)" if left == "half" else "sock.close()"
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        (pid,) = [p.pid for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())]
        os.kill(pid, signal.SIGSTOP)  # it accepts late
        with connected_stranger(("127.0.0.1", port), f"{shut}\n") as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(asked("POST", "/unload").hex() + "\n")
            child.stdin.flush()
            assert child.stdout.readline()
            os.kill(pid, signal.SIGCONT)
            eventually(lambda: "without API keys" in daemon.log, "the refusal is logged")
        assert daemon.info()["state"] == "serving"


@only_root
@linux
def test_a_daemon_of_another_user_answers_that_user_and_root(tmp_path: Path) -> None:
    with gateway(owner=UID) as port:
        assert told(said_by_stranger(port, asked("GET", "/openapi.json")))[0] == 200
        answer = post(port, "/none", {})  # by root
        assert answer.status == 404


def test_connections_whose_user_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol.TcpPeers, "uid", lambda *_: NOBODY)
    with gateway(owner=os.geteuid()) as port:
        answer = post(port, "/generate", {"prompt": "x"})
        assert answer.status == 403 and "forwarded port" in answer.json["error"]["message"]
        assert post(port, "/unload", {}).status == 403
    with gateway(owner=os.geteuid(), keys={"0123456789abcdef": "alice"}, api_key_file="x") as port:
        assert post(port, "/none", {}, X_Api_Key="0123456789abcdef").status == 404


def test_where_users_are_not_told_the_owner_shares_nothing_without_a_key(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol.TcpPeers, "uid", lambda *_: UNTOLD)
    own = {"0123456789abcdef": ""}
    with gateway(daemon.path, owner=os.geteuid(), keys=own, asked=False) as port:
        body = {"prompt": "x", "max_tokens": 1, "stream": False}
        for headers, key in (
            ({}, WITHOUT_KEY), ({"X_Api_Key": "none"}, WITHOUT_KEY),
            ({"X_Api_Key": "0123456789abcdef"}, ""),
        ):  # fmt: skip
            assert post(port, "/generate", body, User_Agent="curl/8", **headers).status == 200
            newest = daemon.info()["recent"][-1]
            assert (newest["key"], newest["app"]) == (key, "curl")


def test_a_key_of_the_owner_is_made_once(daemon: DaemonProcess) -> None:
    port_of(daemon)
    found = os.stat(own_key_file())
    assert stat.S_IMODE(found.st_mode) == 0o600 and found.st_nlink == 1
    key = own_key()
    assert len(key) >= 40
    os.chmod(own_key_file(), 0o644)
    try:
        assert own_key() == ""  # others may know it
    finally:
        os.chmod(own_key_file(), 0o600)
    with DaemonProcess(daemon.directory, socket=str(daemon.directory / "b"), http="127.0.0.1:0"):
        assert own_key() == key
    assert os.listdir(os.path.dirname(own_key_file())).count(os.path.basename(own_key_file())) == 1
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert key not in commands.stdout
