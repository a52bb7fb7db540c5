"""What is in the way for a while ends nothing for good: the model's file, file descriptors."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.http_client import ask
from tests.support.server_harness import (
    DaemonProcess,
    RawClient,
    engines_of,
    eventually,
    model_file,
)
from umaserve.server.engines.descriptors import ENGINE, Reserve
from umaserve.server.engines.start.next_try import LONGEST_S, NextTry, pause_s

DESCRIPTORS = 64


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, n_ctx=1024, environment={"FAKE_TICK_MS": "5"}) as daemon:
        yield daemon
        daemon.idle()


def serves(daemon: DaemonProcess, prompt: str) -> None:
    with daemon.client() as client:
        assert bytes(client.generate(prompt, max_tokens=5).tokens) == answer(prompt, 5)


def break_the_model(daemon: DaemonProcess) -> Path:
    """The engine dies, and its model cannot be loaded until the mark is gone."""
    broken = Path(daemon.model + ".broken")
    broken.touch()
    os.kill(daemon.engine_pid(), signal.SIGKILL)
    eventually(lambda: daemon.info()["state"] == "unloaded")
    return broken


def test_a_model_that_comes_back_is_served_again(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "interrupted", max_tokens=300)
        client.wait_tokens("a", 3)
        broken = break_the_model(daemon)
        (result,) = client.finish()
        assert result.error is not None and result.error["code"] == "E_RUNTIME_001"
        assert "broken on purpose" in result.error["message"]
        error = client.generate("x", "b").error
        assert error is not None and error["code"] == "E_MODEL_001"
        assert "broken on purpose" in error["message"]
        next_try = daemon.info()["next_try"]
        assert next_try["model"] == daemon.model and "on purpose" in next_try["reason"]
        assert 0 <= next_try["in_s"] <= LONGEST_S
        assert "is tried again at" in error["message"] and "umaserve load" in daemon.log
        client.send(type="metrics", sessions=True)
        assert client.answer("metrics")["next_try"]["model"] == daemon.model
    broken.unlink()
    eventually(lambda: daemon.info()["state"] == "serving", "nobody has sent a load")
    assert daemon.info()["next_try"] is None
    serves(daemon, "again")


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_a_load_takes_the_place_of_the_next_try(
    daemon: DaemonProcess, tmp_path: Path, other: bool
) -> None:
    broken = break_the_model(daemon)
    model = model_file(tmp_path / "other.gguf") if other else daemon.model
    with daemon.client() as client:
        client.send(type="load", model=daemon.model)
        while (event := client.receive())["event"] == "progress":
            pass
        assert event["code"] == "E_MODEL_002" and daemon.info()["next_try"] is not None
        broken.unlink()
        client.send(type="load", model=model)
        while (event := client.receive())["event"] == "progress":
            pass
        assert event["event"] == "loaded"
    assert daemon.info()["next_try"] is None
    pid = daemon.engine_pid()
    serves(daemon, "loaded")
    assert daemon.engine_pid() == pid and len(engines_of(daemon.process.pid)) == 1


@pytest.mark.slow
def test_an_unload_ends_the_tries(daemon: DaemonProcess) -> None:
    broken = break_the_model(daemon)
    with daemon.client() as client:
        client.send(type="unload")
        assert client.answer("unloaded")["event"] == "unloaded"
        assert daemon.info()["next_try"] is None
        broken.unlink()
        error = client.generate("x", "b").error
        assert error is not None and "`umaserve load MODEL` loads one" in error["message"]


@pytest.mark.slow
def test_a_daemon_that_waits_for_its_next_try_stops_at_once(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        break_the_model(daemon)


def test_pauses_grow_and_have_an_end() -> None:
    pauses = [pause_s(deaths) for deaths in (1, 1.3, 2, 3, 4, 5, 100, 1e9)]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_S and pauses[0] < 1
    text = NextTry("m.gguf", "it is cut short", 3).text()
    assert "m.gguf" in text and "it is cut short" in text


def few_descriptors(daemon: DaemonProcess) -> list[RawClient]:
    """Clients that take all there are; the last one was turned away."""
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    clients: list[RawClient] = []
    while True:
        clients.append(daemon.client())
        with contextlib.suppress(BrokenPipeError):  # it has been turned away already
            clients[-1].send(type="ping")
        event = clients[-1].receive()
        assert event is not None, "the connection was closed without a word"
        if event["event"] != "pong":
            assert event["code"] == "E_LIMIT_002"
            assert f"file descriptors left (`ulimit -n` is {DESCRIPTORS})" in event["message"]
            return clients


def leave(daemon: DaemonProcess, clients: list[RawClient]) -> None:
    """Until another one is taken again, and the daemon has closed its ends of all the others."""
    front = psutil.Process(daemon.process.pid)
    with_them = front.num_fds()
    for client in clients:
        client.socket.close()
    # All but the one that was turned away, and what an engine's start may have open.
    eventually(lambda: front.num_fds() <= with_them - len(clients) + 1 + ENGINE // 2)

    def taken() -> bool:
        with daemon.client() as client:
            with contextlib.suppress(BrokenPipeError):
                client.send(type="ping")
            event = client.receive()
            return event is not None and event["event"] == "pong"

    eventually(taken)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process")
def test_an_engine_is_replaced_though_clients_have_all_descriptors(daemon: DaemonProcess) -> None:
    clients = few_descriptors(daemon)
    try:
        for round in range(4):
            clients[0].send(type="info")
            pid = clients[0].answer("info")["info"]["model"]["engine_pid"]
            daemon.children()
            os.kill(pid, signal.SIGKILL)
            result = clients[0].generate(f"round {round}", f"r{round}", max_tokens=5)
            assert bytes(result.tokens) == answer(f"round {round}", 5)
            with daemon.client() as client:  # takes what the old one had, if it can
                with contextlib.suppress(BrokenPipeError):  # it has been turned away already
                    client.send(type="ping")
                assert client.receive() is not None
    finally:
        leave(daemon, clients)
    serves(daemon, "afterwards")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process")
def test_who_is_turned_away_is_one_line_of_the_log(daemon: DaemonProcess) -> None:
    clients = few_descriptors(daemon)
    for _ in range(50):
        with daemon.client() as client:
            event = client.receive()
            assert event is not None and event["code"] == "E_LIMIT_002"
    leave(daemon, clients)
    eventually(lambda: "turned away" in daemon.log and "(repeated" in daemon.log)
    lines = [line for line in daemon.log.splitlines() if "turned away" in line]
    assert len(lines) == 2
    times = re.search(r"repeated (\d+) times in \d+ s", lines[1])
    assert times and int(times[1]) >= 50


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process")
def test_http_goes_on_where_the_front_has_no_descriptor_left(tmp_path: Path) -> None:
    """The gateway is another process, and asks over connections that it has."""
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        assert ask(daemon, "/health").status == 200
        clients = few_descriptors(daemon)
        assert ask(daemon, "/health").status == 200
        leave(daemon, clients)
        assert ask(daemon, "/health").status == 200


def test_what_is_lent_comes_back() -> None:
    reserve = Reserve()
    reserve.keep(3)
    try:
        assert reserve.fill()
        with reserve.lent(2):
            assert not reserve.fill(), "nobody else takes them meanwhile"
            with reserve.lent():
                pass
        assert reserve.fill()
    finally:
        for fd in reserve._fds:
            os.close(fd)
