"""The sockets that ``--http`` asks for, and what to tell people about them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address

import trio

from umaserve.config import host_and_port
from umaserve.server.clients.listener import BACKLOG, ClaimedSocket, SocketError

PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette")  # that only the gateway needs
LOOKUP_S = 10.0  # for the address of a host's name

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # the other address of the host may do


@dataclass(frozen=True)
class HttpListeners:
    """``url`` is where clients find us, ``host`` what was configured (empty for a Unix socket).
    ``exposed``: other machines may reach it; ``claimed``: where it is a Unix socket."""

    listeners: tuple[trio.SocketListener, ...]
    url: str
    host: str = ""
    exposed: bool = False
    claimed: ClaimedSocket | None = None


def problem_with(address: str, main_socket: str) -> str:
    """Why this ``--http`` address cannot be served beside that ``--socket``; empty if it can."""
    missing = [name for name in PACKAGES if find_spec(name) is None] if address != "off" else []
    if missing:
        names = " and ".join(missing)
        return f"--http needs {names}, which is not installed; see `umaserve doctor`"
    path = address.removeprefix("unix:")
    if path != address and os.path.abspath(path) == os.path.abspath(main_socket):
        return f"--http and --socket both name {path}; choose two paths"
    return ""


@asynccontextmanager
async def open_http(address: str, api_key_file: str = "") -> AsyncIterator[HttpListeners | None]:
    """Listen at an ``--http`` address while the context lasts; ``None`` for ``off``.

    A Unix socket is claimed as the main one is: mode 0600, a stale file replaced, removed at the
    end.  Raises ``SocketError``, which says what to do: also where other machines could ask
    without an API key.
    """
    if address == "off":
        yield None
    elif address.startswith("unix:"):
        with ClaimedSocket(address.removeprefix("unix:"), "--http unix:PATH") as claimed:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(claimed.socket))
            yield HttpListeners((listener,), f"unix:{claimed.path}", claimed=claimed)
    else:
        opened = await _open_tcp(address)
        try:
            if opened.exposed and not api_key_file:
                raise SocketError(
                    f"--http {address} is open to other machines, so it needs --api-key-file FILE; "
                    "--http 127.0.0.1:PORT is for this machine only"
                )
            yield opened
        finally:
            for listener in opened.listeners:
                listener.socket.close()


async def _open_tcp(address: str) -> HttpListeners:
    """One listener for each address that the host has here, all on one port."""
    host, port = host_and_port(address)
    listeners: list[trio.SocketListener] = []
    failure: OSError | None = None
    for ip in await _addresses(address, host, port):
        try:
            listeners += await trio.open_tcp_listeners(port, host=ip, backlog=BACKLOG)
        except OSError as error:
            failure = error
            if error.errno in _ABSENT:
                continue
            for listener in listeners:
                listener.socket.close()
            raise _unusable(address, host, port, error) from None
        port = listeners[0].socket.getsockname()[1]  # where 0 let the system choose
    if not listeners:
        assert failure is not None
        raise _unusable(address, host, port, failure)
    ips = [listener.socket.getsockname()[0].partition("%")[0] for listener in listeners]
    shown = f"[{host}]" if ":" in host else host
    exposed = not all(ip_address(ip).is_loopback for ip in ips)
    return HttpListeners(tuple(listeners), f"http://{shown}:{port}", host, exposed)


async def _addresses(address: str, host: str, port: int) -> list[str]:
    try:
        with trio.fail_after(LOOKUP_S):
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, trio.TooSlowError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        raise SocketError(
            f"--http {address}: the host {host} cannot be found ({why}); name an address of this "
            "machine, such as 127.0.0.1"
        ) from None
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _unusable(address: str, host: str, port: int, error: OSError) -> SocketError:
    if error.errno == errno.EADDRINUSE:
        text = (
            f"port {port} is in use by another program; stop that one, or choose another port "
            "(0 takes a free one)"
        )
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = f"this user may not listen on port {port}; choose one from 1024 up"
    elif error.errno in _ABSENT:
        text = f"{host} is no address of this machine; 127.0.0.1 always is"
    else:
        text = f"cannot listen: {error.strerror or error}"
    return SocketError(f"--http {address}: {text}")
