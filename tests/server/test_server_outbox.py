"""The bounded outbox: whole frames, in order, and never more than the limit kept."""

from __future__ import annotations

import socket

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.protocol.frames import FrameDecoder, frame
from umaserve.server.engines.outbox import Outbox

LIMIT = 50_000


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def drain(sock: socket.socket) -> bytes:
    out = b""
    while True:
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return out
        if not data:
            return out
        out += data


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9000), st.booleans(), st.booleans()), max_size=40))
def test_what_arrives_is_what_was_put_until_it_overflows(steps: list) -> None:
    ours, theirs = pair()
    with ours, theirs:
        outbox, decoder = Outbox(ours, LIMIT), FrameDecoder()
        put: list[bytes] = []
        got: list[bytes] = []
        for number, (size, flushes, reads) in enumerate(steps):
            body = number.to_bytes(2, "little") + bytes(size)
            outbox.put(frame(body))
            put.append(body)
            if flushes:
                outbox.flush()
                if outbox.overflowed:
                    break
                assert len(outbox._buffer) <= LIMIT
            if reads:
                got += decoder.feed(drain(theirs))
        overflowed = outbox.overflowed
        outbox.put(frame(b"bye"))
        for _ in range(1000):
            outbox.flush()
            got += decoder.feed(drain(theirs))
            if outbox.empty.is_set():
                break
        assert got[-1] == b"bye"
        assert decoder.pending == 0
        if overflowed:
            assert got[:-1] == put[: len(got) - 1]
        else:
            assert got[:-1] == put


def test_a_peer_that_is_gone_breaks_it_quietly() -> None:
    ours, theirs = pair()
    theirs.close()
    with ours:
        outbox = Outbox(ours, LIMIT)
        outbox.put(frame(b"x"))
        outbox.flush()
        assert outbox.broken and outbox.empty.is_set()
        outbox.put(frame(b"y"))
        outbox.flush()


def test_the_task_sends_what_the_socket_did_not_take() -> None:
    async def main() -> None:
        ours, theirs = pair()
        with ours, theirs:
            outbox, decoder, got = Outbox(ours, 10_000_000), FrameDecoder(), []
            bodies = [bytes([i]) * 20_000 for i in range(30)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.run)
                for body in bodies:
                    outbox.put(frame(body))
                outbox.flush()
                assert not outbox.empty.is_set()
                while len(got) < len(bodies):
                    await trio.lowlevel.wait_readable(theirs)
                    got += decoder.feed(drain(theirs))
                await outbox.empty.wait()
                nursery.cancel_scope.cancel()
            assert got == bodies

    trio.run(main)
