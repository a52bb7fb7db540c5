"""Bytes that nearly are HTTP: no answer is a failure of ours, nothing hangs or is smuggled."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import psutil
import pytest

from benchmarks.http_mutants import mutant, pieces
from tests.support.gateway import said_to
from tests.support.http_client import ask, port_of
from tests.support.server_harness import DaemonProcess, eventually

QUIET_S = 0.3  # without a byte: whatever it waits for, it is not told
AT_ONCE = 16
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\ndate: ")
OK = {*range(100, 500), 501, 503}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    environment = {"FAKE_TICK_MS": "0", "FAKE_SAYS": "Hello!"}
    folder = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(folder, http="127.0.0.1:0", environment=environment) as daemon:
        yield daemon


def told(port: int, seed: int) -> bytes:
    """What comes of one mutant until the server closes, or says nothing more."""
    random = Random(seed)
    data = b""
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces(mutant(random), random):
                sock.sendall(piece)
            sock.settimeout(QUIET_S)
            while part := sock.recv(65536):
                data += part
        except OSError:  # it closed before all was sent, or fell silent
            pass
    return data


def fuzz(daemon: DaemonProcess, seeds: range) -> Counter[int]:
    """Statuses of all answers."""
    port, found = port_of(daemon), Counter[int]()
    (gateway,) = [p for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for seed, data in zip(seeds, pool.map(lambda seed: told(port, seed), seeds), strict=True):
            statuses = [int(status) for status in STATUS.findall(data)]
            assert {*statuses} <= OK, f"seed {seed}: {data[:2000]!r}"
            found.update(statuses)
    assert ask(daemon, "/health").status == 200
    daemon.idle()
    assert gateway.is_running(), daemon.log

    def taken() -> list[object]:
        held = gateway.net_connections("tcp")
        return [c for c in held if c.status != psutil.CONN_LISTEN]

    eventually(lambda: not taken(), "no connection is left")
    assert "failed" not in daemon.log and "ended" not in daemon.log, daemon.log
    return found


def test_mutants_of_requests(daemon: DaemonProcess) -> None:
    assert {200, 400, 404} <= {*fuzz(daemon, range(400))}


@pytest.mark.slow
def test_more_mutants_of_requests(daemon: DaemonProcess) -> None:
    found = fuzz(daemon, range(10_000, 22_000))
    assert {200, 400, 403, 404, 405, 406, 421, 431} <= {*found}, found


def test_a_body_that_is_refused_is_not_asked_for_afterwards(daemon: DaemonProcess) -> None:
    """Its route begins only then, and would write "100 Continue" behind the last word."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    for _ in range(20):
        data = said_to(port_of(daemon), head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert STATUS.findall(data)[-1:] == [b"400"], data
    assert "failed" not in daemon.log, daemon.log


SECOND = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
START = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5 0\r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: chunked\r\n Content-Length: 5\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"Transfer-Encoding: \x00chunked\r\n",
        b"X: y\nContent-Length: 5\r\n",
        b"X: y\rContent-Length: 5\r\n",
    ],
)
def test_a_head_that_is_two_things_is_answered_once(daemon: DaemonProcess, head: bytes) -> None:
    """A proxy in front may read such a head in another way: what follows is nobody's request."""
    data = said_to(port_of(daemon), START + head + b"\r\n0\r\n\r\n" + SECOND)
    assert STATUS.findall(data) == [b"400"], data
    assert b"smuggled" not in data and b"connection: close" in data


@pytest.mark.parametrize(
    "chunk",
    [b"5\r\n{}   XX0\r\n\r\n", b"-2\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
     b"2 \x00\r\n{}\r\n0\r\n\r\n", b"10000000000000002\r\n{}\r\n0\r\n\r\n", b"2\n{}\n0\n\n"],
)  # fmt: skip
def test_chunks_that_are_none_end_the_connection(daemon: DaemonProcess, chunk: bytes) -> None:
    head = START + b"Transfer-Encoding: chunked\r\n\r\n"
    data = said_to(port_of(daemon), head + chunk + SECOND)
    assert b"smuggled" not in data and STATUS.findall(data) == [b"400"], data
    behind = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = said_to(port_of(daemon), behind + head + chunk + SECOND)
    assert b"smuggled" not in data and STATUS.findall(data) == [b"200", b"400"], data
