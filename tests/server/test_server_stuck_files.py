"""Files that are none, and files that do not answer: who asks is told, nobody else waits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.patches.front import stuck_files, unkillable
from tests.support.server_harness import DaemonProcess, RawClient, eventually, model_file
from umaserve.config import ConfigError, load_config
from umaserve.models import needs as memory
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.system.regular_file import NotRegular, open_regular

KINDS = ("pipe", "socket", "device", "folder", "link to a pipe")


def irregular(folder: Path, kind: str) -> Path:
    path = folder / "x.gguf"
    if kind == "device":
        return Path("/dev/zero")
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        os.mkfifo(path)
    if kind == "link to a pipe":
        link = folder / "link.gguf"
        link.symlink_to(path)
        return link
    return path


def load(client: RawClient, model: Path | str) -> dict:
    client.send(type="load", model=str(model))
    while True:
        event = client.receive()
        assert event is not None
        if event["event"] != "progress":
            return event


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = irregular(tmp_path, kind)
    with pytest.raises(NotRegular, match="not a regular file"):
        open_regular(path)
    with pytest.raises(GGUFError, match="not a regular file|is a directory"):
        memory.look_at(str(path))
    with pytest.raises(GGUFError, match="not a regular file|is a directory"):
        check_gguf(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_config({"config": str(path)}, {})


def test_a_configuration_from_a_pipe_of_the_shell_is_read() -> None:
    read, write = os.pipe()
    os.write(write, b"[scheduler]\nhang_timeout_s = 7.0\n")
    os.close(write)
    try:
        assert load_config({"config": f"/dev/fd/{read}"}, {}).hang_timeout_s == 7.0
    finally:
        os.close(read)


def test_a_load_of_a_pipe_is_answered_and_the_next_one_is_done(tmp_path: Path) -> None:
    other = model_file(tmp_path / "other.gguf")
    with DaemonProcess(tmp_path) as daemon, daemon.client() as client:
        event = load(client, irregular(tmp_path, "pipe"))
        assert event["code"] == "E_MODEL_002" and "not a regular file" in event["message"]
        assert load(client, other)["event"] == "loaded"


def test_a_daemon_is_not_started_with_a_pipe(tmp_path: Path) -> None:
    model = str(irregular(tmp_path, "pipe"))
    with DaemonProcess(tmp_path, model=model, wait=False) as daemon:
        daemon.expected = 1
        assert daemon.wait() == 1
        assert "not a regular file" in daemon.log and "--model" in daemon.log


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[DaemonProcess]:
    model_file(tmp_path / "stuck.gguf")
    with DaemonProcess(tmp_path, patch=stuck_files) as daemon:
        yield daemon


def test_a_file_that_does_not_answer_stops_nobody(stuck: DaemonProcess, tmp_path: Path) -> None:
    other = model_file(tmp_path / "other.gguf")
    with stuck.client() as client, stuck.client() as others:
        for _ in range(2):
            client.send(type="load", model=str(tmp_path / "stuck.gguf"))
            result = others.generate("meanwhile", max_tokens=20)
            assert bytes(result.tokens) == answer("meanwhile", 20)
            event = client.answer("loaded")
            assert event["code"] == "E_MODEL_002" and "there was no answer" in event["message"]
        assert load(client, other)["event"] == "loaded"


def test_a_daemon_ends_beside_a_file_that_does_not_answer(
    stuck: DaemonProcess, tmp_path: Path
) -> None:
    with stuck.client() as client:
        client.send(type="load", model=str(tmp_path / "stuck.gguf"))
        client.send(type="ping")
        assert client.answer("pong")["event"] == "pong"
        stuck.process.terminate()
        assert stuck.wait() == 0


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_start_with_a_file_that_does_not_answer(tmp_path: Path, by_signal: bool) -> None:
    model = model_file(tmp_path / "stuck.gguf")
    with DaemonProcess(tmp_path, model=model, patch=stuck_files, wait=False) as daemon:
        daemon.expected = -signal.SIGTERM if by_signal else 1
        eventually(lambda: "looking" in daemon.log)
        if by_signal:
            daemon.process.terminate()
        assert daemon.wait() == daemon.expected
        assert by_signal or "there was no answer in 1 s" in daemon.log


def test_an_engine_that_cannot_be_killed_keeps_nobody(tmp_path: Path) -> None:
    model = model_file(tmp_path / "load-hangs.gguf")
    with DaemonProcess(tmp_path, model=model, patch=unkillable, wait=False) as daemon:
        eventually(daemon.reachable)
        eventually(daemon.children)
        daemon.process.terminate()
        assert daemon.wait() == 0
        assert "does not end; it is left behind" in daemon.log
        for process in daemon.seen.values():
            process.kill()


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """Between the look at what it is and the opening."""
    path = irregular(tmp_path, "pipe")
    (tmp_path / "file").write_bytes(b"GGUF")
    code = (
        "import os, sys\n"
        "from umaserve.system.regular_file import open_regular\n"
        "real = os.stat\n"
        "os.stat = lambda p, **k: real(sys.argv[2])\n"
        "try:\n    open_regular(sys.argv[1])\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "file")]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert run.stdout == "it is a named pipe, not a regular file\n", run.stderr
