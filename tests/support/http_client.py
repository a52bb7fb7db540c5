"""HTTP for tests: the address a daemon says it has, one question, and answers off a raw socket."""

from __future__ import annotations

import re
import socket
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tests.support.server_harness import TIMEOUT_S, DaemonProcess, eventually


def port_of(daemon: DaemonProcess) -> int:
    """Of the address in the log, where the configured port was 0."""
    return int(eventually(lambda: re.search(r"http://\S+?:(\d+) answers", daemon.log))[1])


class Reply:
    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()


def ask(daemon: DaemonProcess, path: str, method: str = "GET", **headers: str) -> Reply:
    """One request on a connection of its own; ``_`` in names of headers stands for a hyphen."""
    connection = HTTPConnection("127.0.0.1", port_of(daemon), timeout=TIMEOUT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        return Reply(connection.getresponse())
    finally:
        connection.close()


def raw(daemon: DaemonProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(daemon)), TIMEOUT_S)


def replies(sock: socket.socket, count: int, method: str = "GET") -> list[Reply]:
    """So many answers that come one after the other on one connection."""

    class Shared:
        """``HTTPResponse`` closes the file it reads from; the next one goes on with it."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def makefile(self, mode: str) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def close(self) -> None:
            pass

    shared = Shared(sock.makefile("rb"))
    out = []
    for _ in range(count):
        response = HTTPResponse(shared, method=method)  # type: ignore[arg-type]
        response.begin()
        out.append(Reply(response))
    return out
