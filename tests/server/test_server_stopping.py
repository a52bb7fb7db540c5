"""A stop that cuts what runs: everybody is told, and nothing new begins."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.gateway import begun, everything, post
from tests.support.http_client import port_of
from tests.support.server_harness import ROOT, DaemonProcess, engines_of, eventually, model_file

SLOW = {"FAKE_TICK_MS": "5"}
STOPPING = "the daemon is shutting down"
CHAT = [{"role": "user", "content": "x"}]
DIALECTS = {
    "/generate": {"prompt": "x"},
    "/v1/completions": {"prompt": "x", "max_tokens": 2000},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 2000},
    "/api/chat": {"messages": CHAT},
    "/api/generate": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}


def cli(daemon: DaemonProcess, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "umaserve", *words, "--socket", daemon.path],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip


def asked_by_cli(daemon: DaemonProcess) -> subprocess.Popen[str]:
    """Of a request that has tokens already."""
    process = cli(daemon, "generate", "-p", "x", "--raw", "--max-tokens", "2000")
    eventually(lambda: [row for row in daemon.info()["sessions"] if row["tokens"]])
    return process


# --- an answer that is cut -----------------------------------------------------------------------


def test_cut_answer_is_an_error_for_the_command_line(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, drain_s=0.2) as daemon:
        process = asked_by_cli(daemon)
        daemon.children()
        daemon.process.terminate()
        out, err = process.communicate(timeout=60)
        assert out and STOPPING in err
        assert process.returncode == 2
        assert daemon.wait() == 0


def test_answer_that_somebody_else_cancels_is_an_error_for_the_command_line(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path, environment=SLOW) as daemon, daemon.client() as client:
        process = asked_by_cli(daemon)
        (row,) = daemon.info()["sessions"]
        client.send(type="cancel", serial=row["serial"])
        assert client.answer("cancelled")["found"]
        _, err = process.communicate(timeout=60)
        assert "not whole" in err and process.returncode == 2


@pytest.mark.parametrize("path", DIALECTS)
def test_cut_answer_is_an_error_in_every_dialect(tmp_path: Path, path: str) -> None:
    body = DIALECTS[path]
    with DaemonProcess(tmp_path, environment=SLOW, drain_s=0.3, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        with begun(port, path, {**body, "stream": False}) as whole:
            with begun(port, path, {**body, "stream": True}) as stream:
                eventually(lambda: len(daemon.info()["sessions"]) == 2)
                daemon.children()
                daemon.process.terminate()
                told = everything(stream).decode()
                assert STOPPING in told and "E_LIMIT_002" in told
            refused = everything(whole).decode()
            assert refused.startswith("HTTP/1.1 503") and STOPPING in refused
        assert daemon.wait() == 0


def test_unloaded_model_says_why_an_answer_is_cut(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path, environment=SLOW, drain_s=0.2) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "x", max_tokens=2000)
        client.wait_tokens("a", 2)
        client.send(type="unload")
        assert client.answer("unloaded")["event"] == "unloaded"
        result = client.results["a"]
        assert result.error is not None and result.error["code"] == "E_MODEL_001"
        assert "unloaded" in result.error["message"]


# --- while it stops ------------------------------------------------------------------------------


def test_new_connections_are_told_at_once(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW) as daemon:
        with daemon.client() as client:
            client.ask("a", "goes on", max_tokens=300)
            client.wait_tokens("a", 2)
            daemon.children()
            daemon.process.terminate()
            eventually(lambda: "shutting down" in daemon.log)
            process = cli(daemon, "metrics")
            _, err = process.communicate(timeout=60)
            assert STOPPING in err and process.returncode == 2
            assert not client.results["a"].ended
            client.send(type="metrics")  # a connection that was there is still answered
            assert client.answer("metrics")["event"] == "metrics"
            client.finish("a")
            assert bytes(client.results["a"].tokens) == answer("goes on", 300)
        assert daemon.wait() == 0


def test_signals_of_the_front_reach_no_child(tmp_path: Path) -> None:
    """As a closed terminal sends SIGHUP, and a service manager SIGTERM, to all processes."""
    with DaemonProcess(tmp_path, environment=SLOW, http="127.0.0.1:0") as daemon:
        with daemon.client() as client:
            chat = {"messages": CHAT, "max_tokens": 1}
            assert post(port_of(daemon), "/v1/chat/completions", chat).status == 200
            client.ask("a", "goes on", max_tokens=300)
            client.wait_tokens("a", 2)
            children = daemon.children()
            names = [" ".join(child.cmdline()) for child in children]
            assert any("uma-chat" in name for name in names)
            assert any("umaserve.gateway" in name for name in names)
            assert engines_of(daemon.process.pid)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                for child in children:
                    child.send_signal(number)
            daemon.process.send_signal(signal.SIGHUP)
            client.finish("a")
            assert bytes(client.results["a"].tokens) == answer("goes on", 300)
        assert daemon.wait() == 0
        assert "starting another" not in daemon.log and "took" not in daemon.log


def test_engine_that_dies_in_a_stop_is_not_replaced(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW) as daemon, daemon.client() as client:
        client.ask("a", "x", max_tokens=2000)
        client.wait_tokens("a", 2)
        (engine,) = engines_of(daemon.process.pid)
        daemon.children()
        daemon.process.terminate()
        eventually(lambda: "shutting down" in daemon.log)
        engine.kill()
        (result,) = client.finish("a")
        assert result.error is not None and result.error["message"] == STOPPING
        assert daemon.wait() == 0
        assert "starting another" not in daemon.log


def test_engine_that_loads_for_nobody_ends_with_the_stop(tmp_path: Path) -> None:
    """The next model, while the present one still answers."""
    other = model_file(tmp_path / "load-hangs.gguf")
    with DaemonProcess(tmp_path, environment=SLOW) as daemon, daemon.client() as client:
        client.ask("a", "goes on", max_tokens=400)
        client.wait_tokens("a", 2)
        client.send(type="load", model=other)
        eventually(lambda: len(engines_of(daemon.process.pid)) == 2)
        daemon.children()
        daemon.process.terminate()
        refused = client.answer("loaded")
        assert refused["event"] == "error"
        assert not client.results["a"].ended
        client.finish("a")
        assert bytes(client.results["a"].tokens) == answer("goes on", 400)
        assert daemon.wait() == 0


def test_first_signal_tells_of_the_second_which_ends_all_at_once(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        with begun(port, "/generate", {"prompt": "x", "max_tokens": 2000}) as stream:
            eventually(lambda: daemon.info()["sessions"])
            (gateway,) = [
                p for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())
            ]
            gateway.suspend()  # it would not end by itself
            daemon.process.terminate()
            eventually(lambda: "a second signal ends at once" in daemon.log)
            daemon.process.terminate()
            assert daemon.wait() == 0
            assert "leaving now" in daemon.log
            assert not psutil.pid_exists(gateway.pid)
            assert stream.fileno() >= 0


def test_cut_answer_is_told_on_the_socket(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environment=SLOW, drain_s=0.2) as daemon:
        with daemon.client() as client:
            client.ask("a", "x", max_tokens=2000)
            client.ask("b", "x", max_tokens=2000, stream=False)
            client.wait_tokens("a", 2)
            daemon.children()
            daemon.process.terminate()
            for result in client.finish():
                assert result.error is not None and result.error["code"] == "E_LIMIT_002"
                assert json.dumps(result.error).count(STOPPING) == 1
        assert daemon.wait() == 0
