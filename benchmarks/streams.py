"""Many streams read by one process that does next to nothing for each token.

Bytes are searched for two marks, the first token's and the end's; no frame is decoded.  The same
loop reads our socket and llama-server's HTTP, so that the client costs both sides alike.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUIET_S = 120.0  # without a byte for so long, something hangs
_READ = 1 << 18


@dataclass(frozen=True)
class Marks:
    """Bytes that appear with the first token, at the end, and around the number of tokens."""

    first: bytes
    end: bytes
    count: re.Pattern[bytes]


# A quotation mark within generated text is escaped in JSON, so text cannot hold these.
UDS = Marks(b'"event":"token"', b'"event":"eos"', re.compile(rb'"completion_tokens":(\d+)[,}]'))
HTTP = Marks(b'data: {"', b'"stop":true', re.compile(rb'"tokens_predicted":(\d+),'))


@dataclass
class Stream:
    """One request: seconds on the ``perf_counter`` clock, reads and bytes that it took."""

    first_s: float = 0.0
    end_s: float = 0.0
    reads: int = 0
    n_bytes: int = 0
    tail: bytes = field(default=b"", repr=False)


@dataclass
class Run:
    """Streams that were started together at ``began_s``."""

    began_s: float
    streams: list[Stream]
    tokens: int

    @property
    def wall_s(self) -> float:
        return max(s.end_s for s in self.streams) - self.began_s

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all the time, prompts included."""
        return self.tokens / self.wall_s

    @property
    def first_token_s(self) -> list[float]:
        return [s.first_s - self.began_s for s in self.streams]


def run_streams(
    connect: Callable[[], socket.socket], requests: list[bytes], marks: Marks, expected: int
) -> Run:
    """Send all requests at once, a connection each; return when all have ended.

    Raises RuntimeError when a stream ends early or with another number of tokens than
    ``expected``.
    """
    selector = selectors.DefaultSelector()
    sockets = [connect() for _ in requests]
    streams = [Stream() for _ in requests]
    buffer = bytearray(_READ)
    overlap = max(len(marks.first), len(marks.end)) - 1
    for sock, stream in zip(sockets, streams, strict=True):
        sock.setblocking(True)
        selector.register(sock, selectors.EVENT_READ, stream)
    began = time.perf_counter()
    for sock, request in zip(sockets, requests, strict=True):
        sock.sendall(request)
    left = len(streams)
    while left:
        ready = selector.select(QUIET_S)
        if not ready:
            raise RuntimeError(f"{left} streams fell silent for {QUIET_S:.0f} s")
        for key, _ in ready:
            stream = key.data
            n = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            data = stream.tail + buffer[:n]
            if not n:
                raise RuntimeError(f"a stream ended early: {data[-400:]!r}")
            stream.reads += 1
            stream.n_bytes += n
            if not stream.first_s and marks.first in data:
                stream.first_s = time.perf_counter()
            if marks.end in data:
                stream.end_s = time.perf_counter()
                stream.tail = data[data.find(marks.end) :]
                selector.unregister(key.fileobj)
                left -= 1
            else:
                stream.tail = data[-overlap:]
    selector.close()
    tokens = 0
    for sock, stream in zip(sockets, streams, strict=True):
        sock.settimeout(10)
        while (found := marks.count.search(stream.tail)) is None:
            more = sock.recv(_READ)
            if not more:
                raise RuntimeError(f"no number of tokens at the end: {stream.tail[-400:]!r}")
            stream.tail += more
        sock.close()
        if int(found[1]) != expected:
            raise RuntimeError(f"a stream has {int(found[1])} tokens, not {expected}")
        tokens += int(found[1])
    return Run(began, streams, tokens)


def frame(message: dict[str, Any]) -> bytes:
    """A request as our socket takes it."""
    body = json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body


def http_post(path: str, message: dict[str, Any]) -> bytes:
    """A request as an HTTP server takes it, for a connection of its own."""
    body = json.dumps(message).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


def tcp(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
