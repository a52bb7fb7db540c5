"""One HTTP connection to the gateway: slow, silent and garbled clients."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway import everything, gateway, said_to
from umaserve.gateway import http_protocol, incoming
from umaserve.gateway.http_protocol import HEAD_BYTES

GET = b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Without a daemon behind it."""
    with gateway() as port:
        yield port


def statuses(data: bytes) -> list[int]:
    return [int(line.split()[1]) for line in data.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def test_requests_sent_at_once_are_answered_in_order(port: int) -> None:
    openapi = GET.replace(b"none", b"openapi.json")
    data = said_to(port, GET + openapi + LAST)
    # a body without an end of line is followed by the next answer's line
    assert [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]] == [404, 200, 404]


def test_a_garbled_body_ends_no_answer_that_is_before_it(port: int) -> None:
    garbled = b"POST /none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    data = said_to(port, GET + GET + GET + garbled)
    assert re.findall(rb"HTTP/1\.1 (\d{3})", data) == [b"404", b"404", b"404", b"400"]


def test_http_1_0_is_answered_and_closed(port: int) -> None:
    assert statuses(said_to(port, b"GET /openapi.json HTTP/1.0\r\n\r\n")) == [200]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /none HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\n\r\n", 400),
        (b"GET /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_BYTES // 2) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000, 431),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
         + b"Connection: close\r\n\r\n", 413),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(port: int, data: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(data)
        answer = sock.recv(65536)
        assert statuses(answer) == [status]
        body = answer.partition(b"\r\n\r\n")[2]
        assert json.loads(body)["error"]["message"]


def test_request_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    with gateway() as port:
        assert statuses(said_to(port, GET[:-5])) == [408]


def test_body_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "BODY_S", 0.3)
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    with gateway() as port:
        data = said_to(port, head)
        assert statuses(data) == [408] and b"connection: close" in data


def test_silent_clients_are_let_go_after_the_idle_time() -> None:
    with gateway(idle_timeout_s=1.0) as port:
        assert said_to(port, b"") == b""
        assert statuses(said_to(port, GET)) == [404]


def test_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "SEND_S", 0.3)
    with gateway() as port, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", port))
        ask = GET.replace(b"none", b"openapi.json")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while True:
                sock.sendall(ask * 20)


def test_all_connections_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(max_connections=2) as port:
        first = HTTPConnection("127.0.0.1", port, timeout=60)
        first.connect()
        time.sleep(0.01)  # the clock that tells which was first goes on
        second = HTTPConnection("127.0.0.1", port, timeout=60)
        second.request("GET", "/openapi.json")
        assert second.getresponse().read()
        third = HTTPConnection("127.0.0.1", port, timeout=60)
        third.request("GET", "/openapi.json")
        assert third.getresponse().status == 200
        assert first.sock.recv(1) == b""  # it had asked for nothing the longest
        for each in (first, second, third):
            each.close()


def test_a_client_that_waits_for_100_continue_is_answered(port: int) -> None:
    head = (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(head)
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{}")
        assert statuses(everything(sock)) == [503]  # no daemon is there


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([GET[:9], GET[9:], GET]), max_size=6))
def test_no_bytes_break_it(port: int, parts: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        try:
            for part in parts:
                sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
            everything(sock)
        except OSError:
            pass
    assert statuses(said_to(port, LAST)) == [404]
