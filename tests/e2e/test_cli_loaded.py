"""``ps``, ``stop`` and ``run`` beside daemons, and HTTP of one that is started in a terminal."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.fixtures.commands import outcome, run
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.cli.parts.local_http import with_local_http
from umaserve.client import Client
from umaserve.config import load_config
from umaserve.llama.builds import cache_root
from umaserve.system.own_python import run_module


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, drain_s=60.0) as daemon:
        yield daemon


def at(daemon: DaemonProcess, *words: str, **more: str):
    return run(*words, UMA_SOCK=daemon.path, **more)


def test_ps_says_what_is_loaded_and_for_whom(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "x", max_tokens=4000)
        client.wait_tokens("a", 1)
        done = at(daemon, "ps")
        (row,) = json.loads(at(daemon, "ps", "--json").stdout)
    assert (done.returncode, done.stderr) == (0, "")
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["MODEL", "STATE", "MEMORY", "CONTEXT", "USERS", "ADDRESS"]
    info = daemon.info()
    for text in (info["model"]["name"], "serving", " GB ", str(info["model"]["n_ctx"]), " 1  "):
        assert text in line
    assert line.endswith(daemon.path)
    assert row["state"] == "serving" and row["pid"] == daemon.process.pid
    assert sum(row["users"].values()) == 1 and row["rss_gb"] > 0


def test_ps_without_a_model_or_a_user(daemon: DaemonProcess) -> None:
    assert "nobody" in at(daemon, "ps").stdout
    with Client(daemon.path) as client:
        client.unload()
    assert at(daemon, "ps").stdout == "no model is loaded; `umaserve load MODEL` serves one\n"
    assert at(daemon, "ps", "--json").stdout == "[]\n"


def test_stop_ends_the_daemon_and_waits_for_it(daemon: DaemonProcess) -> None:
    assert outcome(at(daemon, "stop")) == (0, "stopped\n", "")
    assert not os.path.lexists(daemon.path) and not os.path.lexists(f"{daemon.path}.lock")
    assert daemon.process.wait(30) == 0
    done = at(daemon, "stop")
    assert done.returncode == 2 and "no daemon at" in done.stderr


def test_stop_says_what_it_waits_for(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "x", max_tokens=100)
        client.wait_tokens("a", 1)
        done = at(daemon, "stop")
        (result,) = client.finish("a")
    assert done.returncode == 0 and "stopped" in done.stdout
    assert result.eos is not None and result.eos["reason"] in ("length", "stop")
    if done.stderr:  # it may have ended in the meantime
        assert "(1 request has 60 s to end; `umaserve stop` again ends at once)" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of processes are Linux's")
def test_stop_ends_no_process_that_is_no_daemon(tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as fake:  # its pid is that of this test
        done = run("stop", daemon=fake)
    assert done.returncode == 1 and "is not the daemon here" in done.stderr


def test_run_asks_the_daemon_that_runs(tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as fake:
        assert outcome(run("run", daemon=fake, stdin="one two\n")) == (0, "one two \n", "")


def test_run_replaces_no_model_without_a_question(tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as fake:
        done = run("run", "demo", "hello", daemon=fake)
        assert done.returncode == 2 and fake.seen == []
    assert "the daemon serves fake, for all its programs" in done.stderr
    assert "`umaserve load demo` serves it" in done.stderr


def test_run_of_what_is_not_there(tmp_path: Path) -> None:
    done = run("run", "/nowhere/x.gguf", "hello", UMA_SOCK=str(tmp_path / "d.sock"))
    assert done.returncode in (1, 2) and "/nowhere/x.gguf" in done.stderr
    assert not (tmp_path / "d.sock").exists()


def test_run_starts_a_daemon_that_stays(tmp_path: Path) -> None:
    own = {
        "UMA_SOCK": str(tmp_path / "d.sock"), "UMA_STATE_DIR": str(tmp_path / "state"),
        "UMA_HTTP": "off", "UMA_THREADS": "1", "UMA_CACHE_DIR": str(cache_root()),
        "UMA_N_CTX": "1024",
    }  # fmt: skip
    done = run("run", "demo", "hello", **own)
    try:
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        assert "starting a daemon that stays until `umaserve stop`" in done.stderr
        again = run("run", "demo", "hello", **own)
        assert again.returncode == 0 and "starting" not in again.stderr
    finally:
        stopped = run("stop", **own)
    assert outcome(stopped) == (0, "stopped\n", "")
    assert "serving " in (tmp_path / "state/daemon.log").read_text()


def test_run_says_why_no_daemon_starts(tmp_path: Path) -> None:
    own = {"UMA_STATE_DIR": str(tmp_path / "state"), "UMA_CACHE_DIR": str(cache_root())}
    done = run("run", "demo", UMA_SOCK=str(tmp_path / "not/there.sock"), UMA_HTTP="off", **own)
    assert done.returncode == 1
    assert "error: the daemon did not start:" in done.stderr and "does not exist" in done.stderr


# --- HTTP in a terminal -------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return taken.getsockname()[1]


def test_http_is_on_at_loopback_where_nobody_says(port: int, tmp_path: Path) -> None:
    told: list[str] = []
    config = with_local_http(load_config({}, {}), told.append, port)
    assert (config.http, told) == (f"127.0.0.1:{port}", [])
    file = tmp_path / "c.toml"
    file.write_text("[model]\nn_ctx = 512\n")
    for flags, environ, http in (
        ({"http": "off"}, {}, "off"),
        ({}, {"UMA_HTTP": "unix:/tmp/h.sock"}, "unix:/tmp/h.sock"),
        ({"config": str(file)}, {}, "off"),
    ):
        assert with_local_http(load_config(flags, environ), told.append, port).http == http


def test_a_port_that_is_taken_is_told_once() -> None:
    told: list[str] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
        assert with_local_http(load_config({}, {}), told.append, number).http == "off"
    (line,) = told
    assert f"port {number} is in use" in line and f"--http 127.0.0.1:{number + 1}" in line


@pytest.mark.skipif(tmux() is None, reason=MISSING)
def test_in_a_terminal_a_daemon_speaks_http(tmp_path: Path) -> None:
    """The usual port may be another's here; then a line says so."""
    own = {
        "UMA_HTTP": "", "UMA_SOCK": str(tmp_path / "d.sock"), "UMA_THREADS": "1",
        "UMA_CACHE_DIR": str(cache_root()), "UMA_STATE_DIR": str(tmp_path / "state"),
    }  # fmt: skip
    with Pane(150, 24, tmp_path, **own) as pane:
        pane.command(f"{sys.executable} -m umaserve --model demo --dashboard off")
        pane.shows("serving UMA Serve demo on ")
        text = pane.text().replace("\n", "")
        assert "and http://127.0.0.1:8080 " in text or "port 8080 is in use by another" in text
        pane.press("C-c")
        pane.shows("stopped$")


# --- names --------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has the call")
def test_processes_have_names(tmp_path: Path) -> None:
    with real(tmp_path, http="127.0.0.1:0") as daemon:
        front = psutil.Process(daemon.process.pid)

        def names() -> set[str]:
            return {process.name() for process in (front, *daemon.children())}

        eventually(lambda: {"umaserve", "uma-engine", "uma-gateway"} <= names(), str(names()))


def test_command_lines_begin_with_what_runs() -> None:
    assert run_module("umaserve.engine")[2].startswith("'umaserve.engine'; ")
