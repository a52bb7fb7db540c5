"""The gateway's server in a thread of the test's own process, and what a test says to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import uvloop

from umaserve.gateway.keys import Key, Keys
from umaserve.gateway.process import serve
from umaserve.gateway.settings import Settings


@contextmanager
def gateway(daemon_socket: str = "/nowhere/uma.sock", **settings: Any) -> Iterator[int]:
    """Its port.  ``log`` of the settings is a list that gets its lines; ``keys`` are their owners
    by key, marked as in a file."""
    lines: list[str] = settings.pop("log", [])
    owners: dict[str, str] = settings.pop("keys", {})
    marked = {key: Key(o.removesuffix(" admin"), o.endswith(" admin")) for key, o in owners.items()}
    keys = Keys(marked, settings.pop("asked", True))
    started = threading.Event()
    ends: list[Callable[[], None]] = []

    def ready(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        ends.append(lambda: loop.call_soon_threadsafe(end))
        started.set()

    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        bound.setblocking(False)
        told = Settings(daemon_socket, **settings)
        sockets = [socket.socket(fileno=bound.detach())]

        def run() -> None:
            say = lambda level, text: lines.append(f"{level} {text}")  # noqa: E731
            uvloop.run(serve(told, keys, sockets, say, ready))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert started.wait(60)
            yield port
        finally:
            ends[0]()
            thread.join(60)
            assert not thread.is_alive()


def said_to(port: int, data: bytes, end: bool = False) -> bytes:
    """All that comes until the server closes; ``end``: after we have closed our side."""
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(data)
        if end:
            sock.shutdown(socket.SHUT_WR)
        return everything(sock)


def everything(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


class Posted:
    """What a POST was answered with."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def post(port: int, path: str, body: Any, **headers: str) -> Posted:
    """``body`` as JSON, or as the bytes that it is; ``_`` in headers stands for a hyphen."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, data, {"content-type": "application/json", **named})
        return Posted(connection.getresponse())
    finally:
        connection.close()


def begun(port: int, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A request that is sent, and nothing of its answer read."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    sock = socket.create_connection(("127.0.0.1", port), 60)
    sock.sendall(head.encode() + data)
    return sock


def sse(body: bytes) -> list[Any]:
    """The data of server-sent events: objects, or what is no JSON as text."""
    found: list[Any] = []
    for event in body.decode().split("\n\n"):
        for line in event.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(json.loads(data) if data.startswith("{") else data)
    return found
