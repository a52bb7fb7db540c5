"""What a client sends while it connects, how a sleeping engine hears of it, what can wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, running
from umaserve.config import Config
from umaserve.protocol import Limits, parse_message
from umaserve.server.clients.intake import Intake
from umaserve.server.daemon import Daemon
from umaserve.server.engines.handle import Callbacks, EngineHandle
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.outbox import Outbox
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.rows import NUDGE_EVERY_S
from umaserve.server.requests.sessions import Sessions
from umaserve.wire import messages as m
from umaserve.wire import table as t


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), n_ctx=1024)


@contextmanager
def stopped(daemon: DaemonProcess) -> Iterator[None]:
    """The front does nothing meanwhile; the system takes connections and bytes for it."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def test_requests_that_came_before_the_connection_was_taken(daemon: DaemonProcess) -> None:
    with stopped(daemon):
        clients = [daemon.client() for _ in range(3)]
        for client in clients:
            for i in range(40):  # more than are handled at once
                client.ask(f"r{i}", f"prompt {i}", max_tokens=2)
    for client in clients:
        with client:
            client.finish()
            for i in range(40):
                assert bytes(client.results[f"r{i}"].tokens) == answer(f"prompt {i}", 2)
    daemon.idle()


def test_a_client_that_sends_and_says_that_this_was_all(daemon: DaemonProcess) -> None:
    with stopped(daemon):
        client = daemon.client()
        client.ask("a", "hello", max_tokens=20)
        client.socket.shutdown(socket.SHUT_WR)
    with client:
        client.finish()
        assert client.results["a"].eos is not None
        assert bytes(client.results["a"].tokens) == answer("hello", 20)
    daemon.idle()


def test_garbage_that_came_before_the_connection_was_taken(daemon: DaemonProcess) -> None:
    with stopped(daemon):
        client = daemon.client()
        client.socket.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    with client:
        assert client.answer("error")["code"] == "E_PROTO_002"
        assert client.receive() is None
    daemon.idle()


def test_a_client_that_left_before_it_was_taken(daemon: DaemonProcess) -> None:
    with stopped(daemon):
        for send in (False, True):
            client = daemon.client()
            if send:
                client.ask("a", "hello", max_tokens=500)
            client.socket.close()
    daemon.idle()
    with daemon.client() as client:
        assert bytes(client.generate("after", max_tokens=3).tokens) == answer("after", 3)


def served() -> SimpleNamespace:
    """Models of which none is loaded."""
    return SimpleNamespace(engines=[], current=None, positions=64, sees=False)


def test_what_breaks_while_a_connection_is_taken_ends_that_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    asked: list[str] = []
    rows, take = SimpleNamespace(expect_request=lambda: None), Intake.take

    def first_fails(intake: Intake, data: bytes, most: int) -> Any:
        asked.append("")
        if len(asked) == 1:
            raise RuntimeError("on purpose")
        return take(intake, data, most)

    monkeypatch.setattr(Intake, "take", first_fails)

    def submit(sink: Any, message: Any, *_: Any) -> None:
        asked.append(message.id)

    class SaidLog:
        on_trouble: Any = None

        def __call__(self, level: str, text: str) -> None:
            said.append(text)

    parts: Any = {
        "sessions": SimpleNamespace(rows=rows, submit=submit, live={}),
        "models": served(),
        "log": SaidLog(),
    }
    daemon = Daemon(Config(), meters=Meters(), owner=os.geteuid(), **parts)

    def connect(path: str, id: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        body = json.dumps({"id": id, "prompt": "Hi"}).encode()
        client.sendall(struct.pack("<I", len(body)) + body)
        return client

    async def main() -> None:
        path = str(tmp_path / "s.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            listening.setblocking(False)
            clients = [connect(path, id) for id in ("bad", "good")]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Daemon.accept, daemon, listening, nursery)
                with trio.fail_after(30):
                    while len(asked) < 3:
                        await trio.sleep(0.01)
                assert len(daemon.connections) == 1
                assert clients[0].recv(1) == b""  # closed
                nursery.cancel_scope.cancel()
            for client in clients:
                client.close()

    trio.run(main)
    assert asked == ["", "", "good"]
    assert len(said) == 1 and "c1 failed and was closed" in said[0] and "on purpose" in said[0]


def test_an_engine_is_nudged_now_and_then_and_again_after_a_request() -> None:
    nudges: list[float] = []
    sessions = Sessions(4, 4, 16, Meters(), lambda *_, **__: None)
    engine: Any = SimpleNamespace(
        requests={}, ready=None, alive=True, nudge=lambda: nudges.append(time.monotonic())
    )
    sessions.rows.expect_request()  # nobody is there to be nudged
    sessions.services.default.engine = engine
    end = time.monotonic() + 10 * NUDGE_EVERY_S
    while time.monotonic() < end:
        sessions.rows.expect_request()
    assert 2 <= len(nudges) <= 11
    assert all(b - a >= 0.99 * NUDGE_EVERY_S for a, b in zip(nudges, nudges[1:], strict=False))

    message: Any = parse_message(b'{"id": "a", "prompt": "b"}', Limits())
    for _ in range(3):
        nudges.clear()
        sink: Any = SimpleNamespace(program=1, relays=False, begin=lambda _: None)
        sessions.submit(sink, message, 0)
        sessions.rows.expect_request()
        sessions.rows.expect_request()
        assert len(nudges) == 1
    nudges.clear()
    engine.requests[1] = None  # it does not sleep
    time.sleep(NUDGE_EVERY_S)
    sessions.rows.expect_request()
    assert not nudges


def test_a_cancel_is_urgent_while_its_prompt_is_computed() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = m.Channel("engine")
    start = m.Start("model.gguf", n_slots=2, n_ctx=64, n_seq=2)

    def arrived() -> list[Any]:
        return channel.feed(theirs.recv(4096))

    def nothing(*_: object) -> None: ...

    async def main() -> None:
        callbacks = Callbacks(nothing, lambda _: False, nothing, nothing)
        handle = EngineHandle(start, [], callbacks, loop_lock=LoopLock())
        handle.table, fd = t.SessionTable.create(t.TableSpec(2, 65))
        os.close(fd)
        handle._outbox = Outbox(ours, 1 << 20)
        handle.send(m.Cancel(4))
        assert arrived() == [m.Cancel(4)]
        # whose prompt is being computed, in a tick that may be given up
        handle.table.serial[1], handle.table.in_tick[1], handle.table.abort.armed = 4, 1, 1
        handle.send(m.Cancel(4))
        handle.send(m.Cancel(3))
        assert arrived() == [m.Cancel(4, is_urgent=True), m.Cancel(3)]
        handle.table.t_first_ns[1] = 1  # it has ended since
        handle.send(m.Cancel(4))
        assert arrived() == [m.Cancel(4)]
        assert handle.table.abort.urgent == 1

    with ours, theirs:
        trio.run(main)
