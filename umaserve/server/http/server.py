"""The HTTP gateway: takes connections, looks at who is meant, and asks the routes."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING, cast

import h11
import trio

from umaserve.peer import peer_of
from umaserve.protocol import E_LIMIT_002
from umaserve.server.clients.keep_socket import keep_socket
from umaserve.server.clients.shares import CONNECTION_S
from umaserve.server.engines.descriptors import OUT_OF_THEM, no_descriptors
from umaserve.server.http.connection import HttpConnection
from umaserve.server.http.host import host_is_ours, target_of
from umaserve.server.http.listener import HttpListeners
from umaserve.server.http.message import Response, encode_json, error_body, error_response
from umaserve.server.http.routes import Routes
from umaserve.server.log.lines import trace

if TYPE_CHECKING:
    from umaserve.server.daemon import Daemon

MAX_CONNECTIONS = 256
HTTP = 0  # no process has this number
REQUEST_S = 0.001  # of the front's time, to read a request and to write its answer
ACCEPT_RETRY_S = 0.1
TURN_AWAY_S = 0.2
TURN_AWAY_BYTES = 65536


class HttpServer:
    """Serves ``Routes`` on every listener.

    When all connections are taken, the one that has asked for nothing the longest makes room: those
    who only hold a connection keep nobody out.
    """

    def __init__(self, daemon: Daemon, listeners: HttpListeners) -> None:
        self._daemon = daemon
        self._listeners = listeners
        self._routes = Routes(daemon)
        self._most = min(MAX_CONNECTIONS, daemon.config.max_connections)
        self._connections: set[HttpConnection] = set()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for listener in self._listeners.listeners:
                nursery.start_soon(self._accept, listener, nursery)
            if self._listeners.claimed is not None:
                again = partial(self._serve_again, nursery)
                nursery.start_soon(keep_socket, self._listeners.claimed, self._daemon.log, again)

    def _serve_again(self, nursery: trio.Nursery, bound: socket.socket) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            await self._turn()
            try:
                await trio.lowlevel.wait_readable(listener.socket)
                stream = await self._next(listener)
            except trio.ClosedResourceError:
                return
            except OSError as error:  # the waiting client stays queued
                text = f"an HTTP connection cannot be taken now: {error.strerror}"
                self._daemon.log("warn", text)
                await trio.sleep(ACCEPT_RETRY_S)
                continue
            if stream is None:
                continue
            try:
                self._take(stream, nursery)
            except Exception as error:
                self._daemon.log("error", f"an HTTP connection was not taken: {trace(error)}")
                stream.socket.close()

    async def _next(self, listener: trio.SocketListener) -> trio.SocketStream | None:
        """``None``: it was turned away, for want of file descriptors."""
        reserve = self._daemon.supervisor.reserve
        if reserve.fill():
            try:
                return await listener.accept()
            except OSError as error:
                if error.errno not in OUT_OF_THEM:
                    raise
        with reserve.lent(1), trio.move_on_after(TURN_AWAY_S):
            await self._turn_away(await listener.accept())
        return None

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        self._daemon.log("warn", f"HTTP connections are turned away: {no_descriptors()}")
        try:
            # what it has sent and nobody read would turn our answer into a reset
            await stream.receive_some(TURN_AWAY_BYTES)
            await stream.send_all(_turned_away())
        except trio.BrokenResourceError as error:
            self._daemon.log("debug", f"an HTTP client was turned away and did not listen: {error}")
        finally:
            stream.socket.close()

    def _take(self, stream: trio.SocketStream, nursery: trio.Nursery) -> None:
        if self._may_come(stream):
            self._make_room()
            self._begin(stream, nursery)
        else:
            stream.socket.close()

    def _may_come(self, stream: trio.SocketStream) -> bool:
        """Whether it is our own user, where that can be known."""
        if stream.socket.family != socket.AF_UNIX:
            return True
        try:
            peer = peer_of(cast(socket.socket, stream.socket))
        except OSError:  # it left already
            return False
        if peer.uid in (self._daemon.owner, -1):
            return True
        self._daemon.log("warn", f"refused HTTP to user {peer.uid} (process {peer.pid})")
        return False

    def _make_room(self) -> None:
        while len(self._connections) >= self._most:
            quietest = min(self._connections, key=lambda connection: connection.active_s)
            self._connections.discard(quietest)
            quietest.scope.cancel()

    def _begin(self, stream: trio.SocketStream, nursery: trio.Nursery) -> None:
        idle_s = self._daemon.config.idle_timeout_s
        connection = HttpConnection(
            stream, self._answer, idle_s, lambda: self._daemon.stopping, self._turn
        )
        self._daemon.front_time.used(HTTP, CONNECTION_S)
        self._connections.add(connection)
        nursery.start_soon(self._run, connection)

    async def _run(self, connection: HttpConnection) -> None:
        try:
            await connection.run()
        except Exception as error:  # one broken connection is not the end of the others
            self._daemon.log("error", f"an HTTP connection failed and was closed: {trace(error)}")
        finally:
            self._connections.discard(connection)

    async def _turn(self) -> None:
        """All who come by HTTP count as one program, since nobody knows who they are."""
        front = self._daemon.front_time
        while (wait_s := front.wait_s(HTTP)) and self._daemon.serves_others(HTTP):
            await trio.sleep(wait_s)

    def _answer(self, request: h11.Request) -> Response:
        began_s = time.monotonic()
        try:
            return self._answered(request)
        finally:
            self._daemon.front_time.used(HTTP, REQUEST_S + time.monotonic() - began_s)

    def _answered(self, request: h11.Request) -> Response:
        method = request.method.decode("ascii", "replace")
        target = request.target.decode("ascii", "replace")
        try:
            response = self._respond(request, method, target)
        except Exception as error:
            self._daemon.log("error", f"HTTP {method} {target} failed: {trace(error)}")
            text = "this failed; the daemon's log has the reason"
            return error_response(500, text, "internal_error")
        if response.status >= 400:
            self._daemon.log("debug", f"HTTP {response.status} for {method} {target}")
        return response

    def _respond(self, request: h11.Request, method: str, target: str) -> Response:
        try:
            named, path = target_of(target, _header(request, b"host"))
        except ValueError:
            return error_response(400, f"the target {target} is not a URL", "bad_request")
        # HTTP/1.0 may leave it out; browsers never do
        if self._listeners.host and named and not host_is_ours(named, self._listeners.host):
            text = (
                f"{named} is not a name of this server; use its IP address or localhost, or name "
                "the host in --http"
            )
            return error_response(421, text, "misdirected_request")
        return self._routes.answer(method, path, _header(request, b"accept"))


def _turned_away() -> bytes:
    body = encode_json(error_body(no_descriptors(), E_LIMIT_002, "server_error"))
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def _header(request: h11.Request, name: bytes) -> str:
    """Empty where it is missing; ``name`` in lower case."""
    return b",".join(value for key, value in request.headers if key == name).decode("latin-1")
