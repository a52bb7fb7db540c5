"""When bytes came: a simulated run queue, accounts that lie or are missing, a real wait."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.config import Config
from umaserve.peer import Peer
from umaserve.server.clients import arrivals
from umaserve.server.clients.arrivals import SCHEDSTAT, ArrivalClock, Moment
from umaserve.server.clients.connection import Connection
from umaserve.server.clients.shares import Budget, FrontTime

SPAN = st.integers(0, 10**9)


class Machine:
    """A thread's life as the system would tell it: time, its wait for a core, turns it got."""

    def __init__(self) -> None:
        self.ns = 10**12
        self.waited, self.turns = 5, 1
        self.answer: bytes | None = None  # instead of the truth
        self.broken = False

    def works(self, ns: int) -> None:
        self.ns += ns

    def waits(self, ns: int) -> None:
        """For a core, that it has at the end."""
        self.ns += ns
        self.waited += ns
        self.turns += 1

    def pread(self, fd: int, size: int, at: int) -> bytes:
        if self.broken:
            raise OSError("no such process")
        if self.answer is not None:
            return self.answer
        return f"{self.ns // 2} {self.waited} {self.turns}\n".encode()

    def monotonic_ns(self) -> int:
        return self.ns

    @contextmanager
    def clock(self) -> Iterator[ArrivalClock]:
        """One that runs on this machine, outside of any loop: tests call its hooks."""
        here = SimpleNamespace(O_RDONLY=0, O_CLOEXEC=0, open=lambda *_: 3, close=lambda _: None)
        here.pread = self.pread
        loop = SimpleNamespace(add_instrument=mock.Mock(), remove_instrument=mock.Mock())
        with (
            mock.patch.object(arrivals, "os", here),
            mock.patch.object(arrivals, "time", self),
            mock.patch.object(arrivals.trio, "lowlevel", loop),
        ):
            clock = ArrivalClock()
            clock.start()
            yield clock


@given(st.lists(st.tuples(SPAN, SPAN)), SPAN, SPAN, SPAN)
def test_bytes_that_wake_the_front_came_when_its_wait_began(
    busy: list[tuple[int, int]], asleep: int, waits: int, late: int
) -> None:
    machine = Machine()
    with machine.clock() as clock:
        clock.before_io_wait(1.0)
        clock.after_io_wait(1.0)
        for works, preempted in busy:  # before it slept: no concern of the bytes
            machine.works(works)
            machine.waits(preempted)
        clock.before_io_wait(1.0)
        machine.works(asleep)
        came = machine.ns
        machine.waits(waits)
        clock.after_io_wait(1.0)
        machine.works(late)  # other tasks have their turn first
        assert clock.arrived_ns() == came


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(["works", "waits"]), SPAN), min_size=1, max_size=8),
    st.data(),
)
def test_bytes_that_come_meanwhile_are_dated_back_by_the_waits_since_their_socket_was_empty(
    spans: list[tuple[str, int]], data: st.DataObject
) -> None:
    look = data.draw(st.none() | st.integers(0, len(spans) - 1), label="looks before this span")
    machine = Machine()
    with machine.clock() as clock:
        clock.before_io_wait(1.0)
        clock.after_io_wait(1.0)
        empty: Moment | None = None
        empty_ns, worked, waited = machine.ns, 0, 0
        for number, (kind, ns) in enumerate(spans):
            if number == look:
                empty = clock.now()
                empty_ns, worked, waited = machine.ns, 0, 0
            getattr(machine, kind)(ns)
            worked, waited = worked + ns * (kind == "works"), waited + ns * (kind == "waits")
        clock.before_io_wait(0.0)
        clock.after_io_wait(0.0)
        arrived = clock.arrived_ns(empty)
        assert arrived == machine.ns - waited
        came = data.draw(st.integers(empty_ns, machine.ns), label="came")
        assert empty_ns <= arrived <= machine.ns
        assert -waited <= arrived - came <= worked


@given(st.integers(0, 10**9), SPAN, SPAN)
def test_an_old_look_does_not_matter(old: int, works: int, waits: int) -> None:
    machine = Machine()
    with machine.clock() as clock:
        empty = clock.now()
        machine.waits(old)
        clock.before_io_wait(1.0)
        clock.after_io_wait(1.0)
        machine.works(works)
        machine.waits(waits)
        clock.before_io_wait(0.0)
        clock.after_io_wait(0.0)
        assert clock.arrived_ns(empty) == machine.ns - waits


NUMBERS = st.lists(st.integers(-(10**20), 10**20), max_size=4)
NOISE = st.one_of(st.binary(max_size=64), NUMBERS.map(lambda n: " ".join(map(str, n)).encode()))


@settings(max_examples=300)
@given(st.lists(NOISE, min_size=6, max_size=6), st.booleans())
def test_whatever_the_account_says_the_time_is_a_possible_one(
    noise: list[bytes], looks: bool
) -> None:
    machine = Machine()
    with machine.clock() as clock:
        clock.after_io_wait(1.0)
        empty_ns = machine.ns
        answers = iter(noise)
        for hook in (clock.before_io_wait, clock.after_io_wait):
            machine.works(1000)
            machine.answer = next(answers)
            hook(1.0)
        machine.answer = next(answers)
        empty = (machine.answer, empty_ns) if looks else None
        assert empty_ns <= clock.arrived_ns(empty) <= machine.ns


@pytest.mark.parametrize("text", [b"", b"0 0\n", b"a b c\n", b"1 2 3 4\n", b"\xff\xfe", None])
def test_an_account_that_breaks_ends_the_clock(text: bytes | None) -> None:
    machine = Machine()
    with machine.clock() as clock:
        assert clock.running
        machine.answer, machine.broken = text, text is None
        clock.before_io_wait(1.0)
        machine.waits(1000)
        clock.after_io_wait(1.0)
        assert clock.arrived_ns() == machine.ns
        assert not clock.running
        arrivals.trio.lowlevel.remove_instrument.assert_called_once_with(clock)
        machine.works(1)
        assert clock.arrived_ns(clock.now()) == machine.ns


@pytest.mark.parametrize("content", [None, b"", b"0 0\n", b"run_delay: 5\n"])
def test_without_an_account_bytes_come_when_they_are_read(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "schedstat"
    if content is not None:
        path.write_bytes(content)

    async def main() -> None:
        clock = ArrivalClock(str(path))
        clock.start()
        await trio.sleep(0.001)
        assert not clock.running
        before_ns = time.monotonic_ns()
        assert before_ns <= clock.arrived_ns() <= time.monotonic_ns()

    trio.run(main)


@pytest.mark.skipif(not os.path.exists(SCHEDSTAT), reason="the system keeps no such account")
def test_bytes_for_a_loop_that_sleeps() -> None:
    async def main() -> None:
        clock = ArrivalClock()
        clock.start()
        clock.start()
        assert clock.running
        asleep = 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for _ in range(20):
                await trio.sleep(0.001)
                empty = clock.now()
                sender = threading.Timer(0.01, theirs.send, (b"x",))
                sender.start()
                await trio.lowlevel.wait_readable(ours)
                asleep += clock._before[0].split()[2] != clock._after[0].split()[2]
                arrived_ns = clock.arrived_ns(empty)
                assert empty[1] <= arrived_ns <= clock._after[1]
                assert clock.arrived_ns() <= arrived_ns
                assert ours.recv(9) == b"x"
                sender.join()
        assert asleep  # unless it was kept from running for 10 ms each time
        clock.stop()
        assert not clock.running

    trio.run(main)


class Account:
    """A clock that hands out numbered moments and keeps what it is asked."""

    def __init__(self) -> None:
        self.running = True
        self.moments = 0
        self.asked: list[Moment | None] = []

    def now(self) -> Moment:
        self.moments += 1
        return b"", self.moments

    def arrived_ns(self, empty: Moment | None = None) -> int:
        self.asked.append(empty)
        return 1000 + len(self.asked)


def request(number: int) -> bytes:
    body = json.dumps({"id": f"{number}", "prompt": "Hi"}).encode()
    return struct.pack("<I", len(body)) + body


def test_a_connection_knows_when_it_was_empty() -> None:
    """It looks after each read and before each last event, and at no token."""
    account, config = Account(), Config()
    submitted: list[int] = []

    def submit(sink: Any, message: Any, arrived_ns: int, begin: Any) -> None:
        submitted.append(arrived_ns)

    daemon: Any = SimpleNamespace(
        arrivals=account,
        config=config,
        stopping=False,
        sessions=SimpleNamespace(submit=submit),
        partial=Budget(1 << 20),
        unsent=Budget(1 << 20),
        front_time=FrontTime(),
        serves_others=lambda program: False,
    )
    ours, theirs = socket.socketpair()

    async def main() -> None:
        ours.setblocking(False)
        connection = Connection(daemon, ours, 1, Peer(0, 0))
        await connection._handle_all(connection._take(request(1)))
        assert account.asked == [None] and account.moments == 1
        for _ in range(5):
            connection.flush()
        assert account.moments == 1
        ended: Any = SimpleNamespace(id="1", serial=1)
        connection.error(ended, "E_RUNTIME_001", "so", final=False)
        connection.flush()
        assert account.moments == 1
        connection.error(ended, "E_RUNTIME_001", "so", final=True)
        connection.flush()
        connection.flush()
        assert account.moments == 2
        theirs.send(request(2))
        connection.error(ended, "E_RUNTIME_001", "so", final=True)
        connection.flush()  # there is something to read
        assert account.moments == 2
        await connection._handle_all(connection._take(ours.recv(999)))
        assert account.asked == [None, (b"", 2)] and account.moments == 3
        assert submitted == [1001, 1002]
        account.running = False
        connection.error(ended, "E_RUNTIME_001", "so", final=True)
        connection.flush()
        assert account.moments == 3
        theirs.close()
        account.running = True
        connection.error(ended, "E_RUNTIME_001", "so", final=True)
        connection.flush()
        assert account.moments == 3

    with ours, theirs:
        trio.run(main)
