"""One HTTP connection over streams in memory, with a clock that jumps: slow and garbled clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import h11
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from umaserve.server.http.connection import HEAD_BYTES, HEAD_S, HttpConnection
from umaserve.server.http.message import Response

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


def answer(request: h11.Request) -> Response:
    status = 405 if request.method == b"CONNECT" else 200
    return Response(status, b"<" + request.target + b">")


Client = Callable[[trio.StapledStream], Awaitable[None]]


def talk(client: Client, idle_s: float = 60.0, pair: Callable = memory_stream_pair) -> float:
    """Run a client against a connection; mock seconds until both have ended."""

    async def main() -> float:
        near, far = pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HttpConnection(far, answer, idle_s, lambda: False).run)
            await client(near)
        return trio.current_time()

    clock = MockClock(autojump_threshold=0)
    began = clock.current_time()
    return trio.run(main, clock=clock) - began


async def everything(stream: trio.StapledStream) -> bytes:
    data = b""
    async for part in stream:
        data += part
    return data


def events(data: bytes, methods: list[bytes]) -> list[tuple[int, bytes]]:
    """Status and body of every answer in ``data``, as h11's client side understands them."""
    out = []
    client = h11.Connection(h11.CLIENT)
    client.receive_data(data)
    client.receive_data(b"")
    for method in methods:
        client.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        client.send(h11.EndOfMessage())
        response = client.next_event()
        assert isinstance(response, h11.Response), response
        body = b""
        while isinstance(event := client.next_event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage)
        out.append((response.status_code, body))
        if client.our_state is h11.DONE and client.their_state is h11.DONE:
            client.start_next_cycle()
    return out


def said_to(data: bytes, count: int = 1, idle_s: float = 60.0) -> list[tuple[int, bytes]]:
    """The answers to bytes that are sent at once and followed by an end of file."""
    got = b""

    async def client(stream: trio.StapledStream) -> None:
        nonlocal got
        await stream.send_all(data)
        await stream.send_eof()
        got = await everything(stream)

    talk(client, idle_s)
    return events(got, [b"GET"] * count)


def test_requests_sent_at_once_are_answered_in_order() -> None:
    data = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % i for i in range(50))
    assert said_to(data, 50) == [(200, b"</%d>" % i) for i in range(50)]


def test_http_1_0_is_answered_and_closed() -> None:
    assert said_to(b"GET /a HTTP/1.0\r\n\r\nGET /b HTTP/1.0\r\n\r\n") == [(200, b"</a>")]


def test_head_has_the_length_and_no_body() -> None:
    got = b""

    async def client(stream: trio.StapledStream) -> None:
        nonlocal got
        await stream.send_all(GET.replace(b"GET", b"HEAD") + GET)
        await stream.send_eof()
        got = await everything(stream)

    talk(client)
    assert events(got, [b"HEAD", b"GET"]) == [(200, b""), (200, b"</x>")]
    assert got.count(b"content-length: 4") == 2


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, b"illegal request line"),
        (b"hello\n\n", 400, b"illegal request line"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, b"Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, b"Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, b"Content-Length"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, b"chunk"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, b"chunked"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000, 431, b"long"),
        (b"GET / HTTP/1.1\r\nHost: half", 400, b"closed"),
    ],
)
def test_what_cannot_be_read_is_told_and_closed(data: bytes, status: int, why: bytes) -> None:
    ((got, body),) = said_to(data)
    assert (got, why in body) == (status, True), body
    assert b'"error":{"message":' in body


def test_header_that_never_ends_is_cut_off() -> None:
    """It is refused while it comes, not when it has come whole."""
    sent = 0

    async def client(stream: trio.StapledStream) -> None:
        nonlocal sent
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        with pytest.raises(trio.BrokenResourceError):
            while sent < 100 * HEAD_BYTES:
                await stream.send_all(b"X: " + b"x" * 1000 + b"\r\n")
                sent += 1005

    talk(client, pair=lockstep_stream_pair)
    assert sent <= 100 * HEAD_BYTES


@pytest.mark.parametrize("size", [5, 3_000_000])
def test_body_is_not_waited_for_and_ends_the_connection(size: int) -> None:
    got = b""

    async def client(stream: trio.StapledStream) -> None:
        nonlocal got
        await stream.send_all(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        got = await everything(stream)

    talk(client)
    assert events(got, [b"POST"]) == [(200, b"</x>")]
    assert b"connection: close" in got


def test_client_that_waits_for_100_continue_is_answered() -> None:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    assert said_to(head) == [(200, b"</x>")]


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    ],
)
def test_protocol_is_not_switched(ask: bytes, status: int) -> None:
    answers = said_to(ask + GET, 2)
    assert [answer[0] for answer in answers] == [status, 200]


def test_silent_client_is_let_go_after_the_idle_time() -> None:
    async def client(stream: trio.StapledStream) -> None:
        assert await everything(stream) == b""
        await stream.aclose()

    assert talk(client, idle_s=60.0) == pytest.approx(60.0)


def test_idle_time_begins_anew_with_each_request() -> None:
    async def client(stream: trio.StapledStream) -> None:
        for _ in range(3):
            await trio.sleep(50.0)
            await stream.send_all(GET)
            assert b"</x>" in await stream.receive_some()
        assert await everything(stream) == b""

    assert 210.0 <= talk(client, idle_s=60.0) <= 213.0


def test_idle_time_of_0_is_for_ever() -> None:
    async def client(stream: trio.StapledStream) -> None:
        await trio.sleep(1e6)
        await stream.send_all(GET)
        assert b"</x>" in await stream.receive_some()
        await stream.aclose()

    talk(client, idle_s=0.0)


def test_request_that_drips_is_cut_off() -> None:
    got = b""

    async def client(stream: trio.StapledStream) -> None:
        nonlocal got
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                while True:
                    await stream.send_all(b"G")
                    await trio.sleep(1.0)

            nursery.start_soon(drip)
            got = await everything(stream)
            nursery.cancel_scope.cancel()

    assert HEAD_S <= talk(client, idle_s=0.0) <= HEAD_S + 3
    ((status, body),) = events(got, [b"GET"])
    assert status == 408 and b"request_timeout" in body


def test_client_that_does_not_read_is_let_go() -> None:
    async def client(stream: trio.StapledStream) -> None:
        await stream.send_all(GET)
        await trio.sleep(100.0)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(GET)

    assert talk(client, idle_s=0.0, pair=lockstep_stream_pair) == pytest.approx(100.0)


def test_client_that_leaves_in_the_middle_harms_nobody() -> None:
    async def client(stream: trio.StapledStream) -> None:
        await stream.send_all(GET[:10])
        await stream.aclose()

    talk(client)


WORDS = st.sampled_from(
    [b"GET ", b"/x", b" HTTP/1.1", b"\r\n", b"\n", b"Host: h\r\n", b"Host:", b":", GET,
     b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n",
     b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"HEAD ", b"\x00", b"PRI * HTTP/2.0"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(WORDS, st.binary(max_size=8)), max_size=20))
def test_no_bytes_break_it(parts: list[bytes]) -> None:
    """It ends, without an exception, and what it says begins as HTTP does."""
    got = b""

    async def client(stream: trio.StapledStream) -> None:
        nonlocal got
        for part in parts:
            await trio.lowlevel.checkpoint()  # so that it comes in pieces
            try:
                await stream.send_all(part)
            except trio.BrokenResourceError:
                break
        try:
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
        got = await everything(stream)

    talk(client)
    assert not got or got.startswith(b"HTTP/1.1 ")
