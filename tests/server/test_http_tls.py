"""TLS of the gateway: served with a certificate, and with none that cannot be trusted."""

from __future__ import annotations

import contextlib
import json
import re
import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.support.gateway import everything, gateway
from tests.support.server_harness import DaemonProcess, eventually
from tests.support.strangers import UID, only_root
from umaserve.config import load_config
from umaserve.gateway import tls
from umaserve.server.clients.listener import SocketError
from umaserve.server.gateway.listener import open_http

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes certificates")
KEY = "a-key-of-the-editor"


class Files(NamedTuple):
    cert: Path
    key: Path
    keys: Path


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "keys")
    make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    make += " -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = ["openssl", *make.split(), "-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run(words, check=True, capture_output=True)
    made.keys.write_text(f"editor {KEY}\n")
    for path in (made.key, made.keys):
        path.chmod(0o600)
    yield made


def why_not(**settings: str) -> str:
    """Why these settings do not lead to a listener."""

    async def listen() -> None:
        async with open_http(load_config({"http": "127.0.0.1:0", **settings})):
            pass

    with pytest.raises(SocketError) as error:
        trio.run(listen)
    return str(error.value)


def test_a_client_that_trusts_the_certificate_is_answered(tmp_path: Path, files: Files) -> None:
    told = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    with DaemonProcess(
        tmp_path, http="0.0.0.0:0", api_key_file=str(files.keys), **told
    ) as daemon:  # fmt: skip
        port = port_of(daemon)
        trusting = ssl.create_default_context(cafile=str(files.cert))
        client = HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
        headers = {"Authorization": f"Bearer {KEY}"}
        body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": False})
        client.request("POST", "/generate", body, headers)
        assert json.load(client.getresponse())["event"] == "eos"
        client.request("GET", "/requests", headers=headers)
        assert client.getresponse().status == 200
        client.close()
        assert daemon.info()["http"] == f"https://0.0.0.0:{port}"
        assert "PRIVATE" not in daemon.log


def test_handshakes_that_never_end_count_as_connections(files: Files) -> None:
    told = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    with gateway(max_connections=10, **told) as port:
        silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(40)]
        silent[39].sendall(b"\x16\x03\x01")
        eventually(lambda: len(select.select(silent, [], [], 0)[0]) >= 30, "the oldest go")
        trusting = ssl.create_default_context(cafile=str(files.cert))
        client = HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
        client.request("GET", "/none")
        assert client.getresponse().status == 404
        client.close()
        for sock in silent:
            sock.close()


def test_a_handshake_that_never_ends_is_cut_off(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.3)
    told = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    with gateway(**told) as port:
        for said in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 60) as sock:
                sock.sendall(said)
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP/" not in everything(sock)


def port_of(daemon: DaemonProcess) -> int:
    return int(eventually(lambda: re.search(r"https://\S+?:(\d+) answers", daemon.log))[1])


def test_files_that_cannot_be(files: Files, tmp_path: Path) -> None:
    cert, key = str(files.cert), str(files.key)
    assert "go together" in why_not(tls_cert=cert)
    assert "go together" in why_not(tls_key=key)
    assert "No such file" in why_not(tls_cert=str(tmp_path / "none"), tls_key=key)
    assert "--tls-cert" in why_not(tls_cert=cert, tls_key=str(files.keys))
    assert "--tls-cert" in why_not(tls_cert=str(files.keys), tls_key=key)
    for mode in (0o640, 0o604):
        files.key.chmod(mode)
        assert f"chmod 600 {key}" in why_not(tls_cert=cert, tls_key=key)
    locked = tmp_path / "locked.pem"
    words = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", key, "-out", str(locked)]
    subprocess.run(words, check=True, capture_output=True)
    locked.chmod(0o600)
    assert "--tls-key" in why_not(tls_cert=cert, tls_key=str(locked))


@only_root
def test_a_key_of_another_user_is_not_taken(files: Files) -> None:
    shutil.chown(files.key, UID)
    text = why_not(tls_cert=str(files.cert), tls_key=str(files.key))
    assert f"belongs to another user (uid {UID})" in text


def test_keys_do_not_leave_the_machine_unencrypted(files: Files) -> None:
    text = why_not(http="0.0.0.0:0", api_key_file=str(files.keys))
    assert "--tls-cert FILE" in text and "--insecure-http" in text
    told = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    assert "--api-key-file" in why_not(http="0.0.0.0:0", **told)
