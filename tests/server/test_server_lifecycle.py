"""The daemon's start and end: signals, sockets of others, settings that cannot work."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.patches.front import tell_garbage
from tests.support.server_harness import DaemonProcess, Result, eventually, model_file

SLOW = {"FAKE_TICK_MS": "5"}


def refused(tmp_path: Path, **settings: object) -> str:
    """Log of a daemon that does not start."""
    daemon = DaemonProcess(tmp_path, wait=False, **settings)
    assert daemon.wait() == 1, daemon.log
    assert "Traceback" not in daemon.log
    return daemon.log


def test_a_full_collection_looks_at_little(tmp_path: Path) -> None:
    """Nobody gets a token meanwhile, so what a daemon has from its start on is left out of it."""
    with DaemonProcess(tmp_path, patch=tell_garbage) as daemon:
        eventually(lambda: "serving" in daemon.log)
        with daemon.client() as client:
            for i in range(20):
                client.ask(str(i), "one of some", max_tokens=5)
            client.finish()
    kept, seen = re.findall(r"kept (\d+) seen (\d+)", daemon.log)[0]
    assert int(kept) > 20_000 > 5_000 > int(seen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_lets_running_requests_end(tmp_path: Path, number: int) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, max_sessions=1) as daemon:
        with daemon.client() as client:
            client.ask("running", "goes on", max_tokens=100)
            client.wait_tokens("running", 2)
            client.ask("waiting", "never begins", max_tokens=100)
            client.send(type="ping")
            assert client.answer("pong")
            daemon.children()
            daemon.process.send_signal(number)
            eventually(lambda: "shutting down" in daemon.log)
            client.ask("late", "too late")
            client.finish()
            assert bytes(client.results["running"].tokens) == answer("goes on", 100)
            for id in ("waiting", "late"):
                error = client.results[id].error
                assert error is not None and error["code"] == "E_LIMIT_002"
            assert client.receive() is None
        assert daemon.wait() == 0


def test_drain_is_bounded_and_the_rest_is_told(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, drain_s=0.3) as daemon:
        with daemon.client() as client:
            client.ask("long", "x", max_tokens=2000)
            client.wait_tokens("long", 2)
            daemon.children()
            daemon.process.terminate()
            (result,) = client.finish()
            assert result.error is not None and "shutting down" in result.error["message"]
            while result.eos is None:
                assert client.receive() is not None
            assert result.eos["reason"] == "error"
            assert result.eos["usage"]["completion_tokens"] == len(result.tokens)
        assert daemon.wait() == 0


def test_hung_engine_does_not_keep_the_daemon(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, drain_s=0.2) as daemon:
        with daemon.client() as client:
            client.ask("a", "[hang@5]", max_tokens=100)
            client.wait_tokens("a", 5)
            daemon.children()
            daemon.process.terminate()
            (result,) = client.finish()
            assert result.error is not None and "shutting down" in result.error["message"]
        assert daemon.wait() == 0


def test_second_signal_is_now(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW) as daemon:
        with daemon.client() as client:
            client.ask("long", "x", max_tokens=2000)
            client.wait_tokens("long", 2)
            daemon.children()
            daemon.process.terminate()
            eventually(lambda: "shutting down" in daemon.log)
            daemon.process.terminate()
            assert daemon.wait() == 0
        assert "leaving now" in daemon.log


def test_signal_while_loading(tmp_path: Path) -> None:
    model = model_file(tmp_path / "load-slow.gguf")
    with DaemonProcess(tmp_path, model=model, wait=False) as daemon:
        eventually(daemon.reachable)
        eventually(daemon.children)
        daemon.process.terminate()
        assert daemon.wait() == 0


def test_requests_that_come_while_the_model_loads_wait(tmp_path: Path) -> None:
    model = model_file(tmp_path / "load-slow.gguf")
    with DaemonProcess(tmp_path, model=model, wait=False) as daemon:
        eventually(daemon.reachable)
        with daemon.client() as client:
            assert daemon.info()["state"] == "loading"
            result = client.generate("early", max_tokens=5)
            assert bytes(result.tokens) == answer("early", 5)
            client.results["chat"] = Result()
        eventually(lambda: "serving load-slow on" in daemon.log)


def test_socket_is_private_from_the_start(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        mode = os.stat(daemon.path).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_live_socket_is_refused_with_its_owner(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        log = refused(tmp_path)
        assert f"in use by process {daemon.process.pid}" in log and "--socket" in log
        with daemon.client() as client:
            assert len(client.generate("x", max_tokens=3).tokens) == 3


def test_live_socket_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "uma.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert f"in use by process {os.getpid()}" in refused(tmp_path)
    assert path.exists()


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "uma.sock"))
    with DaemonProcess(tmp_path) as daemon, daemon.client() as client:
        assert len(client.generate("x", max_tokens=3).tokens) == 3


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, wait=False) as daemon:
        eventually(daemon.reachable)
        os.unlink(daemon.path)
        Path(daemon.path).write_text("somebody's")
        daemon.process.terminate()
        assert daemon.wait() == 0
        assert Path(daemon.path).read_text() == "somebody's"
        os.unlink(daemon.path)


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "uma.sock"
    path.write_text("precious")
    assert "is not a socket" in refused(tmp_path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("path", "why"),
    [("x" * 120, "bytes long"), ("none/uma.sock", "does not exist")],
)
def test_socket_path_that_cannot_be(tmp_path: Path, path: str, why: str) -> None:
    assert why in refused(tmp_path, socket=str(tmp_path / path))


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0 and os.path.isdir("/sys/kernel"):  # where not even root may
        closed = Path("/sys/kernel")
    assert "cannot be written" in refused(tmp_path, socket=str(closed / "uma.sock"))


def test_of_two_daemons_at_once_one_serves(tmp_path: Path) -> None:
    both = [DaemonProcess(tmp_path, wait=False) for _ in range(2)]
    loser = eventually(lambda: next((d for d in both if d.process.poll() is not None), None))
    assert loser.process.returncode == 1 and "in use by" in loser.log
    (winner,) = [d for d in both if d is not loser]
    with winner:
        eventually(winner.reachable)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"http": "192.0.2.1:8080"}, "--http"),  # nobody's address
        ({"model": "/nowhere/model.gguf"}, "does not exist"),
        ({"model": "/"}, "is a directory"),
        ({"model": __file__}, "not a usable GGUF file"),
        ({"scorecard": "/nowhere/score.csv"}, "cannot be written"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, settings: dict, why: str) -> None:
    assert why in refused(tmp_path, **settings)


def test_front_imports_neither_numba_nor_the_binding() -> None:
    code = (
        "import sys, umaserve.server.main\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('numba', 'cffi', 'llvmlite')"
        " or m.startswith(('umaserve.llama', 'umaserve.sampling', 'umaserve.policy'))]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_log_in_json_lines(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, log_json=True) as daemon:
        eventually(lambda: "serving" in daemon.log)
    entries = [json.loads(line) for line in daemon.log.splitlines()]
    assert all({"time", "level", "message"} <= set(entry) for entry in entries)


def test_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under ``nohup``."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with DaemonProcess(tmp_path, preexec=ignore) as daemon, daemon.client() as client:
        daemon.process.send_signal(signal.SIGHUP)
        assert len(client.generate("x", max_tokens=20).tokens) == 20
        assert "SIGHUP" not in daemon.log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try it")
def test_another_user_is_refused_whatever_the_mode() -> None:
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.settimeout(10); print(s.recv(1))"
    )
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        with DaemonProcess(Path(name)) as daemon:
            command = [sys.executable, "-S", "-c", code, daemon.path]
            refused_by_mode = subprocess.run(command, capture_output=True, text=True)
            assert "PermissionError" in refused_by_mode.stderr
            os.chmod(daemon.path, 0o666)
            refused_by_name = subprocess.run(command, capture_output=True, text=True)
            assert refused_by_name.stdout == "b''\n"
            assert "refused a connection of user 65534" in daemon.log
