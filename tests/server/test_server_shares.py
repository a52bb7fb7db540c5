"""One program cannot take from the others what the front has for all of them together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_engine import answer
from tests.support.fixtures.commands import environment
from tests.support.http_client import port_of
from tests.support.patches.front import short_frames, small_budgets
from tests.support.server_harness import (
    DaemonProcess,
    RawClient,
    clients_of_another_program,
    eventually,
)
from umaserve.budget import Budget
from umaserve.protocol import ProtocolError
from umaserve.server.clients.connection import Connection
from umaserve.server.clients.questions import WAITING, Questions
from umaserve.server.clients.shares import BURST_S, LONGEST_DEBT_S, SHARE, FrontTime
from umaserve.server.engines import descriptors

PROGRAMS = st.sampled_from("abc")
MiB = 1 << 20

# --- the rules ------------------------------------------------------------------------------------


def fill(budget: Budget, program: str) -> int:
    while budget.take(program, 1):
        pass
    return budget.held_by(program)


def test_one_program_gets_half_and_the_next_half_of_the_rest() -> None:
    budget = Budget(1000)
    assert fill(budget, "a") == 500 and not budget.is_over("a")
    assert [fill(budget, program) for program in "bc"] == [250, 125]
    budget.change("d", 200)
    assert budget.is_over("a") and budget.is_over("d")


@given(st.lists(st.tuples(PROGRAMS, st.integers(1, 40)), max_size=80))
def test_there_is_never_more_than_there_is(steps: list[tuple[str, int]]) -> None:
    budget, held = Budget(100), Counter[str]()
    for program, amount in steps:
        if budget.take(program, amount):
            held[program] += amount
        elif held[program]:
            budget.change(program, -held.pop(program))
        assert held.total() <= 100
        for each in "abc":
            assert budget.held_by(each) == held[each]


def test_what_a_program_uses_it_waits_for_and_nobody_else() -> None:
    now = [100.0]
    front = FrontTime(lambda: now[0])
    front.used("greedy", BURST_S)
    assert front.wait_s("greedy") == 0
    front.used("greedy", 0.1)
    assert front.wait_s("greedy") == pytest.approx(0.1 / SHARE)
    assert front.wait_s("other") == 0
    now[0] += 0.1 / SHARE
    assert front.wait_s("greedy") == pytest.approx(0, abs=1e-9)
    front.used("greedy", 60)
    assert front.wait_s("greedy") == pytest.approx((LONGEST_DEBT_S - BURST_S) / SHARE)


def test_programs_that_are_gone_are_forgotten() -> None:
    now = [0.0]
    front = FrontTime(lambda: now[0])
    for program in range(10_000):
        now[0] += 1
        front.used(program, 0.001)
    assert len(front._debts) <= 4096


def test_texts_are_tokenised_one_at_a_time() -> None:
    at_once, most, done = 0, 0, 0

    async def ask(questions: Questions) -> None:
        nonlocal at_once, most, done
        async with questions.turn("one"):
            at_once += 1
            most = max(most, at_once)
            await trio.sleep(0)
            at_once -= 1
            done += 1

    async def main() -> None:
        questions = Questions()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, questions)

    trio.run(main)
    assert (most, done) == (1, 5)


def test_a_program_with_many_texts_waits_for_itself() -> None:
    order: list[str] = []

    async def ask(questions: Questions, program: str) -> None:
        async with questions.turn(program):
            order.append(program)

    async def main() -> None:
        questions = Questions()
        async with trio.open_nursery() as nursery, questions.turn("first"):
            for program in ("greedy", "greedy", "greedy", "late"):
                nursery.start_soon(ask, questions, program)
                await trio.testing.wait_all_tasks_blocked()
            gone = trio.CancelScope()

            async def leaves() -> None:
                with gone:
                    await ask(questions, "gone")

            nursery.start_soon(leaves)
            await trio.testing.wait_all_tasks_blocked()
            gone.cancel()
            await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert order == ["greedy", "late", "greedy", "greedy"]


def test_texts_that_wait_are_bounded() -> None:
    async def main() -> int:
        questions, refused = Questions(), 0
        async with trio.open_nursery() as nursery:

            async def ask(program: str) -> None:
                nonlocal refused
                try:
                    async with questions.turn(program):
                        await trio.sleep_forever()
                except ProtocolError as error:
                    assert error.code == "E_LIMIT_002"
                    refused += 1

            for _ in range(WAITING):
                nursery.start_soon(ask, "greedy")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, "other")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return refused

    assert trio.run(main) == WAITING // 2


# --- in a daemon ----------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, n_ctx=1024, max_connections=40) as daemon:
        yield daemon


def serves(client: RawClient, prompt: str) -> None:
    assert bytes(client.generate(prompt, prompt, max_tokens=5).tokens) == answer(prompt, 5)


def test_connections_of_one_program_leave_room_for_others(daemon: DaemonProcess) -> None:
    greedy = clients_of_another_program(daemon.path, 60)
    said = [client.receive() for client in greedy[40:]]
    assert all(event and event["code"] == "E_LIMIT_002" for event in said)
    others = [daemon.other_client() for _ in range(3)]
    for number, other in enumerate(others):
        serves(other, f"other {number}")
    serves(greedy[0], "the first of many")
    event = greedy[39].receive()
    assert event is not None and "makes room" in event["message"]
    for client in (*greedy, *others):
        client.socket.close()


def test_a_frame_that_stays_unfinished_has_an_end(daemon: DaemonProcess) -> None:
    """Whatever comes meanwhile; the limit is lowered in the process."""
    with DaemonProcess(
        daemon.directory, socket=str(daemon.directory / "b.sock"), patch=short_frames
    ) as other, other.client() as client, other.client() as busy:
        busy.ask("a", "takes its time", max_tokens=900)
        client.socket.sendall(struct.pack("<I", 1000) + b"{")
        began_s = time.monotonic()
        event = None
        client.socket.settimeout(0.05)
        while event is None and time.monotonic() < began_s + 30:
            with contextlib.suppress(OSError):  # the connection may be closed by now
                client.socket.sendall(b" ")  # any byte would restart an idle clock
            with contextlib.suppress(TimeoutError):
                event = client.receive()
        assert event is not None and event["code"] == "E_LIMIT_004"
        assert "is not whole" in event["message"]
        assert len(busy.finish()[0].tokens) == 900


def test_unfinished_frames_have_one_budget(tmp_path: Path) -> None:
    """200 times a mebibyte less a byte: most are closed, and another program sends a large one."""
    body = json.dumps({"id": "a", "prompt": "x" * 60_000, "max_tokens": 1}).encode()
    with DaemonProcess(tmp_path, n_ctx=65536, max_frame_bytes=1 << 20) as daemon:
        front = psutil.Process(daemon.process.pid)
        before = front.memory_info().rss
        greedy = clients_of_another_program(daemon.path, 200)
        almost = struct.pack("<I", MiB) + b" " * (MiB - 1)
        for client in greedy:
            try:
                client.socket.sendall(almost)
            except (BrokenPipeError, ConnectionResetError):
                continue
        eventually(lambda: daemon.metrics()["errors_total"].get("E_LIMIT_002", 0) > 100)
        assert daemon.log.count("are not whole") <= 2, "lines that come again are counted"
        assert front.memory_info().rss - before < 64 * MiB
        with daemon.other_client() as other:
            other.send_body(body)
            event = other.receive()
            assert event is not None and event["event"] == "token"
        for client in greedy:
            client.socket.close()
        serves(daemon.client(), "afterwards")


def refusals_pass(daemon: DaemonProcess, code: str, count: int) -> bool:
    return daemon.metrics()["errors_total"].get(code, 0) > count


def pushed(daemon: DaemonProcess, count: int, announced: int) -> list[socket.socket]:
    """So many connections with the beginning of a frame, of some hundred kilobytes."""
    found = []
    for client in clients_of_another_program(daemon.path, count):
        found.append(client.socket)
        with contextlib.suppress(OSError):
            client.socket.sendall(struct.pack("<I", announced) + b"x" * 300_000)
    return found


@pytest.mark.parametrize(
    ("announced", "code"), [(1 << 30, "E_PROTO_002"), (600_000, "E_LIMIT_002")]
)
def test_frames_that_are_refused_leave_nothing_behind(
    tmp_path: Path, announced: int, code: str
) -> None:
    with DaemonProcess(tmp_path, n_ctx=65536, max_frame_bytes=1 << 20) as daemon:
        front = psutil.Process(daemon.process.pid)
        before = front.memory_info().rss
        for _ in range(2):
            before_it = daemon.metrics()["errors_total"].get(code, 0)
            sockets = pushed(daemon, 300, announced)
            eventually(partial(refusals_pass, daemon, code, before_it + 100))
            assert front.memory_info().rss - before < 52 * MiB  # of which 32 may be its share
            for sock in sockets:
                sock.close()
        eventually(lambda: front.memory_info().rss - before < 20 * MiB, "it is given back")

        def all_wait() -> bool:
            """Less than a program's share, once the front has noticed that the others closed."""
            errors = daemon.metrics()["errors_total"]
            sockets = pushed(daemon, 90, 600_000)
            with daemon.client() as client:
                serves(client, "afterwards")
            for sock in sockets:
                sock.close()
            return bool(daemon.metrics()["errors_total"] == errors)

        eventually(all_wait)


def test_time_in_which_others_had_the_processor_is_not_charged() -> None:
    front = FrontTime()
    asked: Any = SimpleNamespace(
        daemon=SimpleNamespace(front_time=front, serves_others=lambda program: False), program=1
    )

    async def ask() -> None:
        began_s = time.thread_time()
        time.sleep(2 * BURST_S)
        await Connection.use_front(asked, began_s)

    trio.run(ask)
    assert front.wait_s(1) == 0.0


def test_messages_that_are_refused_leave_nothing_behind(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=65536, max_frame_bytes=1 << 20) as daemon:
        front = psutil.Process(daemon.process.pid)
        with daemon.client() as client:
            before = front.memory_info().rss
            for _ in range(300):
                client.send(type="none", pad="x" * 900_000)
                assert client.answer("none")["code"] == "E_PROTO_003"
            assert front.memory_info().rss - before < 40 * MiB


def test_answers_that_nobody_reads_have_one_budget(tmp_path: Path) -> None:
    """Each connection stays below its own limit; together they are more than one program's."""
    settings = {"n_ctx": 4096, "max_unsent_bytes": 200_000, "patch": small_budgets}
    with DaemonProcess(tmp_path, **settings) as daemon:  # type: ignore[arg-type]
        greedy = clients_of_another_program(daemon.path, 20)
        for client in greedy:
            for i in range(60):  # what the socket takes, and 60 to 160 kB more
                client.send(type="metrics", id=str(i), sessions=True)
        eventually(lambda: "share of the daemon's memory" in daemon.log)
        assert daemon.log.count("does not read fills") == 1
        with daemon.other_client() as other:
            serves(other, "hello")
        for client in greedy:
            client.socket.close()


def busy_share(daemon: DaemonProcess, sockets: list[socket.socket], flood: bytes) -> float:
    """Cores that the front uses while each of ``sockets`` is flooded and read."""
    over = threading.Event()

    def send(sock: socket.socket) -> None:
        while not over.is_set():
            try:
                sock.sendall(flood)
            except TimeoutError:
                continue
            except OSError:
                return

    def read(sock: socket.socket) -> None:
        while not over.is_set():
            try:
                if not sock.recv(MiB):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    threads = [threading.Thread(target=f, args=(s,)) for s in sockets for f in (send, read)]
    front = psutil.Process(daemon.process.pid)
    with daemon.other_client() as other:
        for sock in sockets:
            sock.settimeout(0.2)
        for thread in threads:
            thread.start()
        try:
            serves(other, "at the beginning")
            used = sum(front.cpu_times()[:2])
            began_s = time.monotonic()
            while time.monotonic() < began_s + 2:
                other.send(type="ping")
                other.answer("pong")
                time.sleep(0.01)
            return (sum(front.cpu_times()[:2]) - used) / (time.monotonic() - began_s)
        finally:
            over.set()
            for thread in threads:
                thread.join()
            for sock in sockets:
                sock.close()


def test_messages_of_one_program_leave_the_front_to_others(daemon: DaemonProcess) -> None:
    frame = b'{"type":"info","id":"x"}'
    greedy = [client.socket for client in clients_of_another_program(daemon.path, 8)]
    flood = (struct.pack("<I", len(frame)) + frame) * 500
    assert busy_share(daemon, greedy, flood) < 3 * SHARE


def test_requests_by_http_leave_the_front_to_others(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=1024, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        greedy = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        flood = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
        assert busy_share(daemon, greedy, flood) < 3 * SHARE


def test_a_request_of_another_program_is_named_by_its_serial_alone(daemon: DaemonProcess) -> None:
    """Two programs may both call a request "1"."""
    with daemon.other_client() as ours, daemon.other_client() as theirs:
        ours.ask("1", "hello", max_tokens=900)
        ours.wait_tokens("1", 1)
        theirs.send(type="cancel", id="1")
        assert not theirs.answer("cancelled")["found"]
        theirs.send(type="priority", id="1", priority="background")
        assert theirs.answer("priority")["code"] == "E_PROTO_003"
        (row,) = daemon.info()["sessions"]
        assert row["lane"] == "interactive"
        theirs.send(type="priority", serial=row["serial"], priority="background")
        assert theirs.answer("priority")["event"] == "priority"
        theirs.send(type="cancel", serial=row["serial"])
        assert theirs.answer("cancelled")["found"]
        (result,) = ours.finish()
        assert result.eos is not None and result.eos["reason"] == "cancel"


def test_a_low_limit_of_descriptors_leaves_an_engine_to_be_started(tmp_path: Path) -> None:
    """As under ``ulimit -n 256``: 300 connections, and the engine is killed."""
    import resource

    def low() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with DaemonProcess(tmp_path, n_ctx=1024, preexec=low) as daemon:
        greedy = clients_of_another_program(daemon.path, 300)
        for _ in range(2):
            pid = daemon.engine_pid()
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: daemon.engine_pid() != pid)
            with daemon.other_client() as other:
                serves(other, "hello")
        for client in greedy:
            client.socket.close()


@pytest.mark.parametrize(("limit", "connections"), [(40, 8), (256, 300)])
def test_a_limit_that_is_too_low_is_told_at_the_start(
    tmp_path: Path, limit: int, connections: int
) -> None:
    import resource

    words = ["--socket", str(tmp_path / "d.sock"), "--max-connections", str(connections)]
    done = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "--model", "demo", "--dashboard", "off", *words],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip
    assert done.stderr is not None
    first = done.stderr.readline()
    if limit == 40:
        assert "the daemon needs more file descriptors than `ulimit -n` allows: 40, and" in first
        assert done.wait(60) == 1
    else:
        assert "warn: `ulimit -n` is 256: at most 155 connections may be open at once" in first
        assert "not the 300 of --max-connections; `ulimit -n 636` before the start" in first
        done.terminate()
    done.communicate(timeout=60)


def test_room_for_the_connections_is_asked_for() -> None:
    """Of the limit that is asked for, the connections get what they need."""
    for connections in (1, 8, 608, 609, 1024, 100_000):
        wanted = descriptors._wanted(connections)
        assert wanted - wanted // 3 - descriptors.ENGINE >= connections


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def low() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with DaemonProcess(tmp_path, n_ctx=1024, preexec=low, max_connections=700) as daemon:
        soft, _ = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        assert soft >= min(1000, hard)
