"""The parts of one running daemon, for those that need more than one of them."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import trio

from umaserve.budget import Budget
from umaserve.config import Config
from umaserve.protocol import E_LIMIT_002, STOPPING, Limits, error_event
from umaserve.server.admin import Admin
from umaserve.server.clients.connection import Connection, program_of
from umaserve.server.clients.shares import CONNECTION_S, FrameBudget, FrontTime
from umaserve.server.engines import descriptors
from umaserve.server.figures.scorecard import Scorecard
from umaserve.server.log.lines import Log, trace
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.sessions import Sessions
from umaserve.server.supervision.engine_set import EngineSet
from umaserve.system.peer import Peer, peer_of

ACCEPT_RETRY_S = 0.1
TURNED_AWAY_S = 0.001  # from a connection that was turned away to the next
TOO_MUCH_S = 0.5  # who has to wait so long before it may ask again opens no more connections
PARTIAL_BYTES = 64 * 1024 * 1024  # of frames that are not whole, of all connections
UNSENT_BYTES = 64 * 1024 * 1024  # of answers that nobody reads
FLUSH_S = 1.0

BYTES_A_TOKEN = 8  # of a prompt: text has 3 to 5, indented code more
LEAST_PROMPT_BYTES = 64 * 1024
AROUND_BYTES = 64 * 1024  # of a frame: its other fields, and what JSON escapes
PICTURE_BYTES = 24 * 1024 * 1024  # of all pictures of a conversation
LEAST_BODY_BYTES = 32 * 1024 * 1024  # of HTTP: pictures that are not read, conversations too long


@dataclass(eq=False)
class Daemon:
    config: Config
    log: Log
    meters: Meters
    sessions: Sessions
    models: EngineSet
    owner: int  # user id that may connect
    connections: set[Connection] = field(default_factory=set)
    stopping: bool = False
    http: str = ""  # where the gateway is found
    front_time: FrontTime = field(default_factory=FrontTime)

    def __post_init__(self) -> None:
        self.log.on_trouble = self.meters.recent_errors.log_line
        self.scorecard = Scorecard(self.config, self.meters, self.sessions, self.models)
        self.admin = Admin(self)
        self._numbers = itertools.count(1)
        self._programs: dict[Hashable, dict[Connection, None]] = {}  # newest last
        config = self.config
        self.partial = FrameBudget(max(PARTIAL_BYTES, 4 * self.limits.max_frame_bytes))
        self.unsent = Budget(max(UNSENT_BYTES, 4 * config.max_unsent_bytes))
        # what a low limit of descriptors leaves has to do
        self._most = max(1, min(config.max_connections, descriptors.connections_within_limit()))

    @property
    def limits(self) -> Limits:
        """Limits for clients with the models that serve; others may have another context."""
        return limits_of(self.config, self.models.positions, self.models.sees)

    def serves_others(self, program: Hashable) -> bool:
        """Whether another program than this one is connected."""
        return len(self._programs) > (program in self._programs)

    async def accept(self, listening: socket.socket, nursery: trio.Nursery) -> None:
        """Take connections until cancelled, or until ``listening`` is closed; each runs in
        ``nursery``."""
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
                taken = self._take(sock, nursery)
            except Exception as error:
                self.log("error", f"a connection could not be taken: {trace(error)}")
                sock.close()
            else:
                if not taken:  # however fast they come
                    await trio.sleep(TURNED_AWAY_S)

    def _accept(self, listening: socket.socket) -> socket.socket | None:
        """``None``: it was turned away, for want of file descriptors."""
        if descriptors.RESERVE.fill():
            try:
                return listening.accept()[0]
            except OSError as error:
                if error.errno not in descriptors.OUT_OF_THEM:
                    raise
        with descriptors.RESERVE.lent(1):
            sock, _ = listening.accept()
            text = f"the daemon has no file descriptors left (`ulimit -n` is {descriptors.limit()})"
            text += "; try again later, or start it with a higher limit"
            self.log("warn", f"connections are turned away: {text}")
            self._turn_away(sock, Peer(), text)
        return None

    def _take(self, sock: socket.socket, nursery: trio.Nursery) -> bool:
        """Whether it was taken; else its program has asked for too much."""
        began_s = time.thread_time()
        sock.setblocking(False)
        try:
            peer = peer_of(sock)
        except OSError:  # it left already
            sock.close()
            return True
        if peer.uid not in (self.owner, -1):
            self.log("warn", f"refused a connection of user {peer.uid} (process {peer.pid})")
            sock.close()
            return False
        if self.stopping:
            self._turn_away(sock, peer, STOPPING)
            return False
        number = next(self._numbers)
        program = program_of(peer, number)
        wait_s = self.front_time.wait_s(program)
        taken = wait_s <= TOO_MUCH_S or not self.serves_others(program)
        if not taken:
            text = f"this program asks more than its share of the daemon; wait {wait_s:.1f} s"
            self._turn_away(sock, peer, text)
        elif self._is_full() and not self._make_room(program):
            text = f"{len(self.connections)} connections are open; try again later"
            self._turn_away(sock, peer, text)
        else:
            self.sessions.rows.expect_request()
            self._enter(Connection(self, sock, number, peer), nursery, begin=not wait_s)
        self.front_time.used(program, time.thread_time() - began_s)
        return taken

    def _enter(self, connection: Connection, nursery: trio.Nursery, begin: bool) -> None:
        self.front_time.used(connection.program, CONNECTION_S)
        self.connections.add(connection)
        self._programs.setdefault(connection.program, {})[connection] = None
        try:
            if begin:
                connection.begin_at_once()
        except Exception as error:
            self._failed(connection, error)
            connection.end_all()
            self._forget(connection)
        else:
            nursery.start_soon(self._connection, connection)

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._no_more(connection)

    def _no_more(self, connection: Connection) -> None:
        own = self._programs.get(connection.program)
        if own is not None:
            own.pop(connection, None)
            if not own:
                del self._programs[connection.program]

    def _is_full(self) -> bool:
        return sum(map(len, self._programs.values())) >= self._most

    def _make_room(self, program: Hashable) -> bool:
        """Close the newest connection of the program that has most, if ``program`` has fewer."""
        most = max(self._programs.values(), key=len, default={})
        if len(self._programs.get(program, ())) + 1 >= len(most):
            return False
        idle = [c for c in most if not c.requests and not c.keeps_alive]
        victim = (idle or list(most))[-1]
        self._no_more(victim)
        text = f"{self._most} connections are open, most of them this program's"
        victim.close(E_LIMIT_002, f"{text}; this one makes room")
        return True

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
            self._forget(connection)

    def _failed(self, connection: Connection, error: Exception) -> None:
        self.log("error", f"{connection.label} failed and was closed: {trace(error)}")

    async def flush(self) -> None:
        """Give every client a moment to take what is still queued for it."""
        with trio.move_on_after(FLUSH_S):
            for connection in list(self.connections):
                await connection.flushed()


def limits_of(config: Config, positions: int, sees: bool = False) -> Limits:
    """The limits where one session holds ``positions`` tokens; 0 = nobody knows yet.

    ``sees``: a model reads pictures.
    """
    prompt = config.max_prompt_bytes or max(LEAST_PROMPT_BYTES, BYTES_A_TOKEN * positions)
    pictures = PICTURE_BYTES if sees else 0
    frame = config.max_frame_bytes or prompt + AROUND_BYTES + pictures
    body = frame + AROUND_BYTES  # another family's words may take more than ours
    if not config.max_frame_bytes:
        body = max(body, LEAST_BODY_BYTES)
    return Limits(prompt, frame, config.max_tokens or max(positions, 1), body, positions, pictures)
