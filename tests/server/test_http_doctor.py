"""What doctor says of ``--http`` addresses."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fixtures.commands import run
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess, model_file
from umaserve.cli.doctor import http as doctor_http
from umaserve.cli.doctor.http import look_at_http
from umaserve.config import Config


def look(http: str) -> tuple[str, str]:
    level, text, hint = look_at_http(Config(http=http))
    return level, f"{text} {hint}"


def test_a_daemon_that_answers(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        level, text = look(f"127.0.0.1:{port_of(daemon)}")
        assert level == "ok" and "a daemon answers (ok, model)" in text
    with DaemonProcess(tmp_path, http=f"unix:{path}"):
        level, text = look(f"unix:{path}")
        assert level == "ok" and "a daemon answers (ok, model)" in text


def test_addresses_that_are_free(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
    assert look(f"127.0.0.1:{port}") == (
        "ok", f"127.0.0.1:{port} is free; no daemon answers there ",
    )  # fmt: skip
    level, text = look("0.0.0.0:0")
    assert level == "missing" and "is open to other machines" in text
    path = tmp_path / "http.sock"
    assert look(f"unix:{path}")[0] == "ok"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert "was left behind" in look(f"unix:{path}")[1]
    assert os.path.lexists(path)  # doctor only looks


def test_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_http, "LIVE_S", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        level, text = look(f"127.0.0.1:{other.getsockname()[1]}")
    assert level == "warn" and "something else answers" in text


@pytest.mark.parametrize(
    ("http", "why"),
    [
        ("192.0.2.1:80", "no address of this machine"),
        ("unix:/no/such/folder/h.sock", "does not exist"),
        (f"unix:{__file__}", "is not a socket"),
        ("unix:/tmp/uma.sock", "--http and --socket both name"),
    ],
)
def test_addresses_that_cannot_be(http: str, why: str) -> None:
    level, text = look(http)
    assert level == "missing" and why in text


def test_doctor_shows_it(tmp_path: Path) -> None:
    common = ("--socket", str(tmp_path / "s.sock"), "--model", model_file(tmp_path / "m.gguf"))
    out = run("doctor", *common, "--http", f"unix:{tmp_path}/h.sock",
              UMA_CACHE_DIR=str(tmp_path / "none")).stdout  # fmt: skip
    assert f"ok      http       {tmp_path}/h.sock is free" in out
    assert " http " not in run("doctor", *common, UMA_CACHE_DIR=str(tmp_path / "none")).stdout
