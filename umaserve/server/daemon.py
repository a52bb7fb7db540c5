"""The parts of one running daemon, for those that need more than one of them."""

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass, field

import trio

from umaserve.config import Config
from umaserve.protocol import E_LIMIT_002, error_event
from umaserve.server.admin import Admin
from umaserve.server.arrivals import ArrivalClock
from umaserve.server.connection import Connection
from umaserve.server.descriptors import OUT_OF_THEM, no_descriptors
from umaserve.server.logs import Log, trace
from umaserve.server.meters import Meters
from umaserve.server.peer import Peer, peer_of
from umaserve.server.scorecard import Scorecard
from umaserve.server.sessions import Sessions
from umaserve.server.supervisor import Supervisor

ACCEPT_RETRY_S = 0.1
FLUSH_S = 1.0


@dataclass(eq=False)
class Daemon:
    config: Config
    log: Log
    meters: Meters
    sessions: Sessions
    supervisor: Supervisor
    owner: int  # user id that may connect
    connections: set[Connection] = field(default_factory=set)
    stopping: bool = False
    arrivals: ArrivalClock = field(default_factory=ArrivalClock)

    def __post_init__(self) -> None:
        self.log.on_trouble = self.meters.recent_errors.log_line
        self.scorecard = Scorecard(self.config, self.meters, self.sessions, self.supervisor)
        self.admin = Admin(self)
        self._numbers = itertools.count(1)

    async def accept(self, listening: socket.socket, nursery: trio.Nursery) -> None:
        """Take connections until cancelled, or until ``listening`` is closed; each runs in
        ``nursery``."""
        self.arrivals.start()
        while True:
            try:
                await trio.lowlevel.wait_readable(listening)
            except trio.ClosedResourceError:
                return
            try:
                sock = self._accept(listening)
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:  # the waiting client stays queued
                self.log("warn", f"a connection cannot be taken now: {error.strerror}")
                await trio.sleep(ACCEPT_RETRY_S)
                continue
            if sock is None:
                continue
            try:
                self._take(sock, nursery)
            except Exception as error:
                self.log("error", f"a connection could not be taken: {trace(error)}")
                sock.close()

    def _accept(self, listening: socket.socket) -> socket.socket | None:
        """``None``: it was turned away, for want of file descriptors."""
        reserve = self.supervisor.reserve
        if reserve.fill():
            try:
                return listening.accept()[0]
            except OSError as error:
                if error.errno not in OUT_OF_THEM:
                    raise
        with reserve.lent(1):
            sock, _ = listening.accept()
            text = no_descriptors()
            self.log("warn", f"connections are turned away: {text}")
            self._turn_away(sock, Peer(), text)
        return None

    def _take(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        self.sessions.expect_request()
        sock.setblocking(False)
        try:
            peer = peer_of(sock)
        except OSError:  # it left already
            sock.close()
            return
        if peer.uid not in (self.owner, -1):
            self.log("warn", f"refused a connection of user {peer.uid} (process {peer.pid})")
            sock.close()
        elif len(self.connections) >= self.config.max_connections:
            text = f"{self.config.max_connections} connections are open; try again later"
            self._turn_away(sock, peer, text)
        else:
            connection = Connection(self, sock, next(self._numbers), peer)
            self.connections.add(connection)
            try:
                connection.begin()
            except Exception as error:
                self._failed(connection, error)
                connection.end_all()
                self.connections.discard(connection)
            else:
                nursery.start_soon(self._connection, connection)

    def _turn_away(self, sock: socket.socket, peer: Peer, text: str) -> None:
        frame = error_event(None, E_LIMIT_002, text)
        self.meters.error(E_LIMIT_002, text, client=peer)
        try:
            sock.send(frame)
        except OSError as error:
            self.log("debug", f"a connection was turned away and did not listen: {error}")
        sock.close()

    async def _connection(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception as error:  # one broken connection is not the end of the others
            self._failed(connection, error)
        finally:
            self.connections.discard(connection)

    def _failed(self, connection: Connection, error: Exception) -> None:
        self.log("error", f"{connection.label} failed and was closed: {trace(error)}")

    async def flush(self) -> None:
        """Give every client a moment to take what is still queued for it."""
        with trio.move_on_after(FLUSH_S):
            for connection in list(self.connections):
                await connection.flushed()
