"""Tokens that a thread sends while the loop waits: which ones, in which order, and never together
with what a task does."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess
from umaserve.protocol import Limits, parse_message
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.outbox import Outbox
from umaserve.server.main import SWITCH_S
from umaserve.server.requests.life import Answer, Stage
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request
from umaserve.server.requests.tokens.reader import Reader
from umaserve.wire import table as t

N_CTX = 64


class Sink:
    """Keeps what it is given; trio would say so if it were called, as no test runs it."""

    label = app = "test"

    def __init__(self) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.sends: list[int] = []  # tokens there were when each was made
        self.takes = True

    def put(self, frame: bytes) -> None:
        event = json.loads(frame[4:])
        self.tokens.append((event["id"], event["text"]))

    def send_now(self) -> bool:
        self.sends.append(len(self.tokens))
        return self.takes

    def end(self, *_: object) -> None:
        raise AssertionError("ends are the loop's")

    error = flush = end


class Rig:
    """A table that the test writes as an engine would; token n is the letter n of the alphabet."""

    def __init__(self) -> None:
        self.table, fd = t.SessionTable.create(t.TableSpec(4, N_CTX + 1))
        os.close(fd)
        self.meters = Meters()
        rows: Any = SimpleNamespace(accept=self._accept)
        self.flushed: list[Any] = []
        ends: Any = SimpleNamespace(flush=self.flushed.append)
        self.reader = Reader(rows, ends, self.meters, lambda *_, **__: None)
        self.engine: Any = SimpleNamespace(
            ready=SimpleNamespace(n_positions=N_CTX), table=self.table, requests={}, replaced=False,
            service=0, pieces=SimpleNamespace(piece=lambda token: bytes([97 + token])),
        )  # fmt: skip

    @staticmethod
    def _accept(engine: Any, request: Request) -> None:
        request.prompt_ids = [1, 2]
        request.enter(Stage.RUNNING)

    def request(self, sink: Sink, slot: int, **fields: Any) -> Request:
        body = {"id": f"r{slot}", "prompt": "x", "max_tokens": 20, **fields}
        message: Any = parse_message(json.dumps(body).encode(), Limits())
        request = Request.create(slot + 1, sink, message, time.monotonic_ns(), 20)
        request.engine, request.slot = self.engine, slot
        request.enter(Stage.SUBMITTED)
        self.engine.requests[request.serial] = request
        table = self.table
        table.serial[slot], table.state[slot] = request.serial, t.RUNNING
        table.n_prompt[slot] = table.n_tokens[slot] = 2
        return request

    def publish(self, slot: int, *tokens: int) -> None:
        end = int(self.table.n_tokens[slot])
        self.table.tokens[slot, end : end + len(tokens)] = tokens
        self.table.token_ns[slot, end : end + len(tokens)] = time.monotonic_ns()
        self.table.n_tokens[slot] = end + len(tokens)

    def read(self) -> bool:
        return self.reader.on_tokens(self.engine)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_send_a_client_and_tick(rig: Rig) -> None:
    one, other = Sink(), Sink()
    rig.request(one, 0), rig.request(one, 1), rig.request(other, 2)
    for token in range(3):
        for slot in range(3):
            rig.publish(slot, token)
        assert rig.read() is False
    # the first token of a request does not wait for anything else
    assert one.sends == [1, 2, 4, 6] and other.sends == [1, 2, 3]
    assert [text for id, text in one.tokens if id == "r1"] == ["a", "b", "c"]
    assert rig.read() is False and one.sends == [1, 2, 4, 6]
    assert rig.meters.tokens_total == 9 and rig.meters.gap_histogram.snapshot()["count"] == 6


def test_a_token_that_is_not_visible_yet_waits(rig: Rig) -> None:
    sink = Sink()
    request = rig.request(sink, 0)
    rig.publish(0, 0)
    rig.read()
    rig.publish(0, 1, -1)
    assert rig.read() is False and request.tokens == [0, 1]
    rig.table.tokens[0, 4] = 2
    assert rig.read() is False and request.tokens == [0, 1, 2]


@pytest.mark.parametrize("fields", [{"stop": ["c"]}, {"logprobs": 1}, {"stream": False}])
def test_what_is_not_plain_text_is_left_to_the_loop(rig: Rig, fields: dict[str, Any]) -> None:
    sink = Sink()
    request = rig.request(sink, 0, **fields)
    assert rig.read() is False
    rig.publish(0, 0)
    assert rig.read() is True and request.tokens == [] and sink.sends == []


@pytest.mark.parametrize("told", [Answer.CANCELLED, Answer.TOLD])
def test_requests_that_are_over_are_left_to_the_loop(rig: Rig, told: Answer) -> None:
    sink = Sink()
    request = rig.request(sink, 0)
    rig.publish(0, 0)
    rig.read()
    request.answered(told)
    rig.publish(0, 1)
    assert rig.read() is True and request.tokens == [0]


def test_the_last_token_goes_out_with_the_end(rig: Rig) -> None:
    sink = Sink()
    request = rig.request(sink, 0, max_tokens=3)
    rig.publish(0, 0)
    assert rig.read() is False
    rig.publish(0, 1, 2)  # the last by number: its row is about to be DONE
    assert rig.read() is True and request.tokens == [0]
    stopped = rig.request(sink, 1)
    rig.publish(1, 0)
    assert rig.read() is True  # for the other one
    rig.publish(1, 1)
    rig.table.state[1] = t.DONE
    assert rig.read() is True and stopped.tokens == [0]


def test_a_first_token_that_is_the_last_one_does_not_wait(rig: Rig) -> None:
    sink = Sink()
    request = rig.request(sink, 0, max_tokens=1)
    rig.publish(0, 4)
    rig.table.state[0] = t.DONE
    assert rig.read() is True and request.tokens == [4] and sink.tokens == [("r0", "e")]
    assert sink.sends == [1]


def test_a_row_of_another_request_is_not_read(rig: Rig) -> None:
    sink = Sink()
    request = rig.request(sink, 0)
    rig.table.serial[0] = 99
    rig.publish(0, 0)
    assert rig.read() is False and request.tokens == []


def test_a_full_socket_is_left_to_the_loop(rig: Rig) -> None:
    sink = Sink()
    rig.request(sink, 0)
    sink.takes = False
    rig.publish(0, 0)
    assert rig.read() is True and rig.flushed == []
    rig.reader.on_wake(rig.engine)
    assert rig.flushed == [sink] and rig.read() is False


def test_an_outbox_sends_at_once_what_the_socket_takes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        outbox = Outbox(ours, 1 << 20)
        assert outbox.send_now()
        outbox.put(b"one")
        outbox.put(b"two")
        assert outbox.send_now() and theirs.recv(100) == b"onetwo"
        frames = [bytes([65 + i % 26]) * 1000 for i in range(200)]
        for frame in frames:
            outbox.put(frame)
        assert not outbox.send_now()  # too much for the socket
        outbox.flush()  # the loop's: what is left is on its way
        outbox.put(b"last")
        assert not outbox.send_now()  # nothing overtakes it
        got = b""
        theirs.setblocking(False)
        while len(got) < 200_004:
            try:
                got += theirs.recv(65536)
            except BlockingIOError:
                outbox._send()
        assert got == b"".join(frames) + b"last"
        theirs.close()
        outbox.put(b"nobody")
        assert not outbox.send_now()
        outbox.flush()
        assert outbox.broken


def test_the_lock_is_free_only_while_the_loop_waits() -> None:
    lock, over = LoopLock(), threading.Event()
    inside, seen, wrong = [False], [0], [0]

    def thread() -> None:
        while not over.is_set():
            with lock:
                inside[0] = True
                seen[0] += 1
                time.sleep(0.0005)
                inside[0] = False

    async def task() -> None:
        for _ in range(150):
            wrong[0] += inside[0]
            for _ in range(3):
                time.sleep(0.0002)
                wrong[0] += inside[0]
            await trio.sleep(0.0005)

    async def main() -> None:
        lock.start()
        lock.start()
        beside = threading.Thread(target=thread)
        beside.start()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(task)
        over.set()
        await trio.to_thread.run_sync(beside.join)

    trio.run(main)
    assert seen[0] > 20 and wrong[0] == 0
    with lock:  # the run is over, and nobody is locked out
        pass


@pytest.fixture
def front_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("front_switches")
def test_the_lock_is_to_be_had_while_tasks_always_have_something_to_do() -> None:
    """A few passes of the loop for each turn of the thread; thousands without the door, or with
    Python's usual interval."""
    lock, over = LoopLock(), threading.Event()
    passes, waited = 0, []

    def thread() -> None:
        while not over.is_set():
            before = passes
            with lock:
                waited.append(passes - before)
            time.sleep(0.001)

    async def main() -> None:
        nonlocal passes
        lock.start()
        beside = threading.Thread(target=thread)
        beside.start()
        end_s = time.monotonic() + 30
        while len(waited) < 50 and time.monotonic() < end_s:
            passes += 1
            until_s = time.perf_counter() + 0.0002
            while time.perf_counter() < until_s:  # with the GIL
                pass
            await trio.lowlevel.checkpoint()
        over.set()
        await trio.to_thread.run_sync(beside.join)

    trio.run(main)
    assert len(waited) >= 50 and passes < 5000


def test_answers_are_whole_while_others_keep_the_loop_busy(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, daemon.client() as one, daemon.client() as other:
        for id in "abc":
            one.ask(id, f"prompt {id}", max_tokens=400)
        for _ in range(200):
            other.send(type="metrics")
            other.answer("metrics")
        for id, result in zip("abc", one.finish(), strict=True):
            assert bytes(result.tokens) == answer(f"prompt {id}", 400)
            assert result.eos["reason"] == "length"
