"""``umaserve doctor`` on ``--http``: who answers there, or whether the address can be had."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
from http.client import HTTPConnection, HTTPException, HTTPSConnection

import trio

from umaserve.client import OtherUser
from umaserve.client.connect import refuse_strangers
from umaserve.config import Config, host_and_port
from umaserve.server.clients.listener import SocketError
from umaserve.server.gateway.listener import HttpListeners, open_http, problem_with

LIVE_S = 3.0

Finding = tuple[str, str, str]  # "ok", "warn" or "missing", a text, and what to do


class _Local(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIVE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        refuse_strangers(self.sock, self._path)


def look_at_http(config: Config) -> Finding:
    """Check the HTTP address of a configuration, which is not ``off``."""
    address = config.http
    problem = problem_with(address, config.socket)
    if problem:
        return "missing", problem, ""
    if address.startswith("unix:"):
        return _unix(address.removeprefix("unix:"))
    host, port = host_and_port(address)
    scheme = "https" if config.tls_cert else "http"
    answer = _ask(_connection(scheme, host, port)) if port else ""
    if answer:
        return _answered(f"{scheme}://{address}", answer)
    try:
        opened = trio.run(_try, config)
    except SocketError as error:
        return "missing", str(error), ""
    free = f"{address} is free" if port else f"{host} has a free port"
    if opened.exposed:
        hint = "use 127.0.0.1 unless that is what you want"
        hint += "" if config.tls_cert else ": keys and texts go unencrypted"
        return "warn", f"{free}, and open to other machines", hint
    return "ok", f"{free}; no daemon answers there", ""


def _connection(scheme: str, host: str, port: int) -> HTTPConnection:
    """No certificate is checked: nothing is told here, and what answers is only named."""
    if scheme == "http":
        return HTTPConnection(host, port, timeout=LIVE_S)
    return HTTPSConnection(host, port, timeout=LIVE_S, context=ssl._create_unverified_context())


async def _try(config: Config) -> HttpListeners:
    """Raises ``SocketError``."""
    async with open_http(config) as opened:
        assert opened is not None
        return opened


def _unix(path: str) -> Finding:
    folder, other = os.path.dirname(os.path.abspath(path)), "choose another --http unix:PATH"
    if not os.path.isdir(folder):
        return "missing", f"{folder} does not exist", f"create it, or {other}"
    if not os.path.lexists(path):
        if os.access(folder, os.W_OK):
            return "ok", f"{path} is free; no daemon answers there", ""
        return "missing", f"{folder} is not writable", other
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return "missing", f"{path} is not a socket", other
    try:
        answer = _ask(_Local(path))
    except OtherUser as error:
        return "missing", str(error).partition(";")[0], other
    if answer:
        return _answered(path, answer)
    return "ok", f"{path} was left behind; `umaserve serve` replaces it", ""


def _ask(connection: HTTPConnection) -> str:
    """Return the daemon's state and model from ``GET /health``.

    A lone question mark stands for another server; an empty string for no listener.
    """
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        body = response.read(65536)
        if response.getheader("server") != "umaserve":
            return "?"
        about = json.loads(body)
        return f"{about['status']}, {about['model'] or 'no model'}"
    except ConnectionRefusedError:
        return ""
    except OSError as error:
        # no such address, or none that can be reached: trying to listen there says more
        return "?" if isinstance(error, TimeoutError) else ""
    except (HTTPException, ValueError, KeyError):
        return "?"
    finally:
        connection.close()


def _answered(where: str, answer: str) -> Finding:
    if answer == "?":
        return "warn", f"something else answers at {where}", "choose another --http"
    return "ok", f"{where}: a daemon answers ({answer})", ""
