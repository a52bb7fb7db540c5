"""A service manager listens first and hands its socket over, as systemd does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import (
    FAKE_ENGINE,
    ROOT,
    TIMEOUT_S,
    RawClient,
    eventually,
    model_file,
)

# Takes the descriptors that it is given for those that were handed over, as `sd_listen_fds` wants.
HAND_OVER = """
import os, sys
fds = [int(word) for word in sys.argv[1].split(",")]
for place, fd in enumerate(fds):
    os.dup2(fd, 3 + place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
os.execv(sys.executable, [sys.executable, "-m", "tests.support.patches.front", sys.argv[2]])
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*sockets: socket.socket | IO[str], **environment: str) -> subprocess.Popen[str]:
        settings = {
            "model": model_file(tmp_path / "m.gguf"), "dashboard": "off",
            "socket": str(tmp_path / "another.sock"), "core_dumps": True,
        }  # fmt: skip
        # out of the way of the numbers that they get
        high = [os.dup(sock.fileno()) for sock in sockets]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-c", HAND_OVER, ",".join(map(str, high)),
                    json.dumps([settings, FAKE_ENGINE, ""]),
                ],
                pass_fds=high, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )  # fmt: skip
        for fd in high:
            os.close(fd)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with unix_socket(tmp_path / "uma.sock") as sock:
        yield sock


def unix_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    path.chmod(0o600)
    sock.listen()
    return sock


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0


def test_who_came_before_the_daemon_is_served(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    path = str(tmp_path / "uma.sock")
    with RawClient(path) as early:
        process = start(listening)
        result = early.generate("early", max_tokens=5)
    assert bytes(result.tokens) == answer("early", 5)
    assert not (tmp_path / "another.sock").exists()
    eventually(lambda: f" on {path} (" in (tmp_path / "log").read_text(), "it says where it serves")
    end(process)


def test_the_socket_outlives_the_daemon_and_the_next_one_gets_who_waits(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    path = tmp_path / "uma.sock"
    end(served(start(listening), path))
    assert path.exists() and not Path(f"{path}.lock").exists()
    with RawClient(str(path)) as between:
        second = start(listening)
        assert bytes(between.generate("b", max_tokens=3).tokens) == answer("b", 3)
    end(second)


def served(process: subprocess.Popen[str], path: Path) -> subprocess.Popen[str]:
    with RawClient(str(path)) as client:
        client.generate("x", max_tokens=1)
    return process


def test_a_deleted_socket_is_the_daemons_own_from_then_on(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    path = tmp_path / "uma.sock"
    process = served(start(listening), path)
    path.unlink()
    eventually(path.exists, "the socket is bound again")
    end(served(process, path))
    assert not path.exists()


def test_a_second_daemon_is_kept_out(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    first = served(start(listening), tmp_path / "uma.sock")
    assert start(listening).wait(TIMEOUT_S) == 1
    assert f"in use by process {first.pid}" in (tmp_path / "log").read_text()
    end(first)


def test_no_child_gets_the_variables(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system does not show other processes' environment")
    process = served(start(listening, NOTIFY_SOCKET="/nowhere"), tmp_path / "uma.sock")
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    for child in children:
        names = set(child.environ())
        assert not names & {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET"}
    end(process)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_manager_is_told_when_it_serves_and_when_it_stops(
    start: Start, listening: socket.socket, tmp_path: Path, is_abstract: bool
) -> None:
    if is_abstract and sys.platform != "linux":
        pytest.skip("only Linux has sockets without a file")
    name = f"@uma-test-{os.getpid()}" if is_abstract else str(tmp_path / "n@tify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(name.replace("@", "\0") if is_abstract else name)
        told.settimeout(TIMEOUT_S)
        process = start(listening, NOTIFY_SOCKET=name)
        assert told.recv(99) == b"READY=1"
        end(process)
        assert told.recv(99) == b"STOPPING=1"


def test_variables_for_another_process_are_not_heard(start: Start, tmp_path: Path) -> None:
    with unix_socket(tmp_path / "uma.sock") as sock, (tmp_path / "log").open("w") as log:
        settings = {"model": model_file(tmp_path / "m.gguf"), "dashboard": "off",
                    "socket": str(tmp_path / "own.sock"), "core_dumps": True}  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.patches.front",
             json.dumps([settings, FAKE_ENGINE, ""])],
            pass_fds=[sock.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "LISTEN_FDS": "1",
                            "LISTEN_PID": str(os.getpid())},
        )  # fmt: skip
    eventually((tmp_path / "own.sock").exists)
    end(served(process, tmp_path / "own.sock"))


def refusal(process: subprocess.Popen[str], tmp_path: Path) -> str:
    assert process.wait(TIMEOUT_S) == 1
    return (tmp_path / "log").read_text()


def test_a_socket_that_others_may_use_is_refused(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    (tmp_path / "uma.sock").chmod(0o666)
    text = refusal(start(listening), tmp_path)
    assert "is open to other users (mode 0666). Set SocketMode=0600" in text


def test_what_is_no_unix_socket_is_refused(
    start: Start, listening: socket.socket, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        assert "umaserve service install" in refusal(start(tcp), tmp_path)
        assert "handed over 2 sockets" in refusal(start(listening, tcp), tmp_path)
    with socket.socket(socket.AF_UNIX) as deaf:
        assert "something else than a listening" in refusal(start(deaf), tmp_path)
    with (tmp_path / "file").open("w") as file:
        assert "something else than a listening" in refusal(start(file), tmp_path)
