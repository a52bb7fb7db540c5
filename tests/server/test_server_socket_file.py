"""The socket's file is deleted or replaced while the daemon runs: it comes back."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, eventually


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    folder = tmp_path / "run"
    folder.mkdir()
    path = str(folder / "uma.sock")
    with DaemonProcess(tmp_path, socket=path, environment={"FAKE_TICK_MS": "5"}) as daemon:
        yield daemon


def is_back(daemon: DaemonProcess) -> None:
    eventually(lambda: os.path.lexists(daemon.path), "the socket is there again")
    eventually(daemon.reachable)
    with daemon.client() as client:
        assert bytes(client.generate("again", max_tokens=5).tokens) == answer("again", 5)
    mode = os.stat(daemon.path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_a_deleted_socket_is_bound_again(daemon: DaemonProcess, tmp_path: Path) -> None:
    with daemon.client() as client:
        client.ask("a", "before", max_tokens=600)
        client.wait_tokens("a", 3)
        for _ in range(2):
            os.unlink(daemon.path)
            is_back(daemon)
        (result,) = client.finish()
        assert bytes(result.tokens) == answer("before", 600)
    assert f"{daemon.path} was gone; it is there again" in daemon.log
    other = DaemonProcess(tmp_path, socket=daemon.path, wait=False)
    assert other.wait() == 1 and f"in use by process {daemon.process.pid}" in other.log


def test_a_deleted_lock_is_taken_again(daemon: DaemonProcess, tmp_path: Path) -> None:
    for both in (False, True):
        os.unlink(daemon.path + ".lock")
        if both:
            os.unlink(daemon.path)
        eventually(lambda: os.path.exists(daemon.path + ".lock"))
        assert Path(daemon.path + ".lock").read_text() == str(daemon.process.pid)
        is_back(daemon)
    other = DaemonProcess(tmp_path, socket=daemon.path, wait=False)
    assert other.wait() == 1 and f"in use by process {daemon.process.pid}" in other.log


@pytest.mark.slow
@pytest.mark.parametrize("what", ["file", "live socket", "no folder"])
def test_where_it_cannot_be_bound_that_is_said_once(daemon: DaemonProcess, what: str) -> None:
    path, folder = Path(daemon.path), Path(daemon.path).parent
    client = daemon.client()
    away = folder.with_name("away")
    path.unlink()
    with client, socket.socket(socket.AF_UNIX) as theirs:
        if what == "file":
            path.write_text("precious")
        elif what == "live socket":
            theirs.bind(str(path))
            theirs.listen()
        else:
            folder.rename(away)
        eventually(lambda: "nobody can connect any more" in daemon.log)
        client.send(type="metrics", sessions=True)
        errors = client.answer("metrics")["errors"]
        assert any("nobody can connect any more" in entry["text"] for entry in errors)
        result = client.generate("still", "s", max_tokens=1500)  # longer than until the next try
        assert bytes(result.tokens) == answer("still", 1500)
        assert daemon.log.count("nobody can connect any more") == 1
        if what == "file":
            assert path.read_text() == "precious"
        if what == "no folder":
            folder.mkdir()
        else:
            path.unlink()
        theirs.close()
    is_back(daemon)


def test_a_stale_socket_in_its_place_is_replaced(daemon: DaemonProcess) -> None:
    os.unlink(daemon.path)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(daemon.path)
    os.chmod(daemon.path, 0o777)
    eventually(lambda: "was gone; it is there again" in daemon.log)
    is_back(daemon)


def test_the_socket_of_http_comes_back_too(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with DaemonProcess(tmp_path, http=f"unix:{path}") as daemon:
        eventually(path.exists)
        path.unlink()
        eventually(path.exists)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"[:15]
        assert "was gone; it is there again" in daemon.log
    assert not path.exists()
