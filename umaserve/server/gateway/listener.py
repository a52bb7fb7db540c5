"""The sockets that ``--http`` asks for, and what to tell people about them."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from umaserve.config import Config, host_and_port
from umaserve.server.clients.listener import BACKLOG, ClaimedSocket, SocketError
from umaserve.system.regular_file import open_regular

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
    path = address.removeprefix("unix:")
    if path != address and os.path.abspath(path) == os.path.abspath(main_socket):
        return f"--http and --socket both name {path}; choose two paths"
    return ""


@asynccontextmanager
async def open_http(config: Config) -> AsyncIterator[HttpListeners | None]:
    """Listen at an ``--http`` address while the context lasts; ``None`` for ``off``.

    A Unix socket is claimed as the main one is: mode 0600, a stale file replaced, removed at the
    end.  Raises ``SocketError``, which says what to do: also where other machines could ask
    without an API key, or would send theirs unencrypted.
    """
    address = config.http
    if address != "off":
        check_tls(config.tls_cert, config.tls_key)
    if address == "off":
        yield None
    elif address.startswith("unix:"):
        with ClaimedSocket(address.removeprefix("unix:"), "--http unix:PATH") as claimed:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(claimed.socket))
            yield HttpListeners((listener,), f"unix:{claimed.path}", claimed=claimed)
    else:
        opened = await _open_tcp(address, "https" if config.tls_cert else "http")
        try:
            if opened.exposed:
                check_exposed(f"--http {address}", config)
                if not (config.tls_cert or config.insecure_http):
                    raise SocketError(
                        f"--http {address} is open to other machines, and keys would go "
                        "unencrypted; name --tls-cert FILE and --tls-key FILE, or allow it with "
                        "--insecure-http"
                    )
            yield opened
        finally:
            for listener in opened.listeners:
                listener.socket.close()


def check_exposed(what: str, config: Config) -> None:
    """Raises ``SocketError`` where no key is asked of other machines."""
    if not config.api_key_file:
        raise SocketError(
            f"{what} is open to other machines, so it needs --api-key-file FILE; "
            f"{what.split()[0]} 127.0.0.1:PORT is for this machine only"
        )


def check_tls(cert: str, key: str) -> None:
    """Raises ``SocketError`` where these files cannot encrypt, or others can read the key."""
    if not (cert or key):
        return
    if not (cert and key):
        raise SocketError("--tls-cert FILE and --tls-key FILE go together; one of them is missing")
    try:
        found = os.stat(key)
        if found.st_uid not in (os.geteuid(), 0):
            raise SocketError(f"--tls-key {key} belongs to another user (uid {found.st_uid})")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SocketError(f"other users can read --tls-key {key}; chmod 600 {key}")
        for path in (cert, key):
            open_regular(path).close()
        # a passphrase would be asked of the terminal
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, "")
    except ssl.SSLError as error:
        why = error.reason or "the key has a passphrase, or is none"
        raise SocketError(f"--tls-cert {cert} and --tls-key {key}: {why}") from None
    except OSError as error:
        name = error.filename or key
        raise SocketError(f"--tls-cert or --tls-key: {name}: {error.strerror or error}") from None
    except ValueError as error:
        raise SocketError(f"--tls-key {key}: {error}") from None


async def _open_tcp(address: str, scheme: str) -> HttpListeners:
    """Open a listener for each address that the host has here, all on one port."""
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
    return HttpListeners(tuple(listeners), f"{scheme}://{shown}:{port}", host, exposed)


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
