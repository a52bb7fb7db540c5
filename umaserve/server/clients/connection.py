"""Connection of a client: received bytes, requests, and events that are sent.

A connection that fails ends alone: its requests are cancelled, all other connections go on.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import trio

from umaserve import protocol as p
from umaserve.server.clients.intake import READ_BYTES, Intake, Taken, discard, receive
from umaserve.server.clients.request_sink import RequestSink
from umaserve.server.engines.outbox import Outbox
from umaserve.server.log.lines import trace
from umaserve.system.peer import Peer

if TYPE_CHECKING:
    from umaserve.server.clients.served_by import AdminMessage, ServedBy

HANDLE_S = 0.001  # then it is the others' turn
GOODBYE_S = 2.0  # to deliver the last frames of a connection that closes
HALF_CLOSED_POLL_S = 0.25


def program_of(peer: Peer, number: int) -> int:
    """The program of connection ``number``: itself where the system does not say who connects."""
    return peer.pid or -number


class Connection(RequestSink):
    """A client on the Unix socket; the sink of its requests' events."""

    def __init__(self, daemon: ServedBy, sock: socket.socket, number: int, peer: Peer) -> None:
        held = partial(daemon.unsent.change, program_of(peer, number))
        super().__init__(Outbox(sock, daemon.config.max_unsent_bytes, held))
        self.daemon = daemon
        self.label = f"c{number}"
        self._number = number
        self.peer = peer
        self.relays = False  # it asks for several programs
        self.answering: Counter[int] = Counter()  # admin messages, by program
        self.keeps_alive = 0  # streams and admin answers under way
        self.questions: dict[str, trio.CancelScope] = {}  # of these, what has an id
        self.nursery: trio.Nursery
        self._sock = sock
        self._intake = Intake(self.program, daemon.partial, daemon.limits.max_frame_bytes)
        self._reading = trio.CancelScope()
        self._at_hand = Taken(0, deque())

    @cached_property
    def app(self) -> str:
        """Its name when it was first asked for: the number may be another process later."""
        return self.peer.app

    @property
    def program(self) -> int:
        return program_of(self.peer, self._number)

    def flush(self) -> None:
        self._outbox.flush()
        if self._closing.is_set():
            return
        if self._outbox.overflowed:
            limit = self.daemon.config.max_unsent_bytes
            text = f"more than {limit} bytes wait here unread"
            self.close(p.E_IO_001, f"{text}; the connection closes")
        elif not self._outbox.empty.is_set() and self.daemon.unsent.is_over(self.program):
            text = "what this program does not read fills its share of the daemon's memory"
            self.close(p.E_IO_001, f"{text}; this connection closes")

    def send_now(self) -> bool:
        return self._outbox.send_now()

    def close(self, code: str, message: str, id: str | None = None) -> None:
        """Say why and close once that is delivered (or cannot be, for a while)."""
        if not self._closing.is_set():
            self.daemon.meters.error(code, message, id or "", self)
            named = {} if id is None else {"request": id}
            # no number of the connection: lines that come again are counted, not written
            text = f"a connection of {self.app or 'a program'} closes: {code} {message}"
            self.daemon.log("info", text, connection=self.label, **named)
            self._outbox.put(p.error_event(id, code, message))
            self.abandon()
            self._intake.drop()
            self._outbox.flush()

    def abandon(self) -> None:
        self._closing.set()
        self._reading.cancel()

    async def run(self) -> None:
        """The whole life of the connection; closes the socket."""
        try:
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self._outbox.run)
                self.nursery.start_soon(self._close_on_goodbye)
                await self._handle_all(self._at_hand)
                await self._read()
                if not self._closing.is_set():
                    self.nursery.cancel_scope.cancel()
        finally:
            self.end_all()

    def begin_at_once(self) -> None:
        """Take a request that came with the connection, before a task is set up for it.

        The engine begins meanwhile.  Whatever else came is left to `run`.
        """
        try:
            data = self._sock.recv(READ_BYTES)
        except OSError:
            return  # nothing yet, or the client is gone, which `run` finds out
        self._at_hand = taken = self._intake.take(data, self.daemon.limits.max_frame_bytes)
        if taken.bodies:
            try:
                message = p.parse_message(taken.bodies[0], self.daemon.limits)
            except p.ProtocolError:
                return
            if isinstance(message, p.Generate):
                taken.bodies.popleft()
                self._guarded(self._generate, message, taken.arrived_ns)

    def end_all(self) -> None:
        """Its requests are cancelled, its socket is closed."""
        self._closing.set()
        try:
            self._cancel_all()
        finally:
            self._outbox.forget()
            self._intake.drop()
            self._sock.close()

    def _cancel_all(self) -> None:
        for request in list(self.requests.values()):
            self.daemon.sessions.ends.cancel(request, gone=True)

    async def _close_on_goodbye(self) -> None:
        """Once closing: end the requests, deliver what is queued, let the client read it."""
        await self._closing.wait()
        self._cancel_all()
        with trio.move_on_after(GOODBYE_S):
            await self._outbox.empty.wait()
            # bytes that the client has sent and nobody read would turn our last frame into a reset
            await discard(self._sock)
        self.nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        while not self._closing.is_set():
            data = await self._receive_or_idle()
            if data is None:
                continue
            if not data:
                await self._finish_half_closed()
                return
            if self._closing.is_set():
                return
            if not self.keeps_alive:
                self.daemon.sessions.rows.expect_request()
            began_s = time.thread_time()
            taken = self._intake.take(data, self.daemon.limits.max_frame_bytes)
            del data  # else it is kept for as long as nothing more comes
            if taken.bodies:
                self._active_s = trio.current_time()
            await self.use_front(began_s)
            await self._handle_all(taken)
            self._end_slow_frame()

    async def _receive_or_idle(self) -> bytes | None:
        """``None`` when the idle time was up, or the connection began to close."""
        idle_s = self.daemon.config.idle_timeout_s
        wait_s = max(0.05, self._active_s + idle_s - trio.current_time()) if idle_s else 3600.0
        if self._intake.partial:
            wait_s = min(wait_s, max(0.05, self._intake.frame_left_s))
        data = None
        with trio.move_on_after(wait_s) as self._reading:
            data = await receive(self._sock)
        if data is not None or self._closing.is_set():
            return data
        if self._end_slow_frame():
            return None
        if self.requests or self.keeps_alive:
            self._active_s = trio.current_time()
        elif idle_s and trio.current_time() >= self._active_s + idle_s:
            self.close(p.E_LIMIT_004, f"nothing was asked for {idle_s:g} s; the connection closes")
        return None

    def _end_slow_frame(self) -> bool:
        """Close the connection where a frame takes too long."""
        if why := self._intake.why_slow:
            self.close(p.E_LIMIT_004, why)
        return bool(why)

    async def _finish_half_closed(self) -> None:
        """The client sends no more.  Answer what it asked for, unless it is gone altogether."""
        poll = select.poll()
        poll.register(self._sock, 0)  # hang-up is always reported
        while self.requests or self.keeps_alive or not self._outbox.empty.is_set():
            if self._outbox.broken or self._closing.is_set() or poll.poll(0):
                return
            with trio.move_on_after(HALF_CLOSED_POLL_S):
                await self._closing.wait()

    async def _handle_all(self, taken: Taken) -> None:
        began_s = time.thread_time()
        while taken.bodies:
            if time.thread_time() > began_s + HANDLE_S:
                await self.use_front(began_s)
                await trio.lowlevel.checkpoint()
                began_s = time.thread_time()
            if self._closing.is_set():
                taken.bodies.clear()
                return
            self._guarded(self._handle, taken.bodies.popleft(), taken.arrived_ns)
        self._intake.handled()
        if taken.failure is not None:
            self.refuse(taken.failure)
        await self.use_front(began_s)

    async def use_front(self, since_s: float) -> None:
        """Charge a program with the front's processor time since then, and wait where it used much.

        Time in which others had the processor is not its doing.
        """
        front = self.daemon.front_time
        front.used(self.program, time.thread_time() - since_s)
        # again: another connection of the program may have been first
        while (wait_s := front.wait_s(self.program)) and not self._closing.is_set():
            if not self.daemon.serves_others(self.program):
                return
            with trio.move_on_after(wait_s):
                await self._closing.wait()

    def _guarded(self, handle: Callable[[Any, int], None], what: Any, arrived_ns: int) -> None:
        try:
            handle(what, arrived_ns)
        except p.ProtocolError as error:
            self.refuse(error)
        except Exception as error:
            self.broke(error, getattr(what, "id", None))

    def broke(self, error: Exception, id: str | None) -> None:
        """Our own code failed on one message, which is refused; the connection goes on."""
        self.daemon.log("error", f"a message of {self.label} failed: {trace(error)}")
        request = self.requests.get(id) if id is not None else None
        if request is not None:
            self.daemon.sessions.ends.broke(request, error)
            return
        text = f"this failed inside the daemon ({type(error).__name__}: {error}); see its log"
        self.refuse(p.ProtocolError(p.E_RUNTIME_001, text, id=id))

    def refuse(self, error: p.ProtocolError) -> None:
        """Tell the client about a message that was not taken.

        The error is over then.  Its traceback goes, as it would keep the message: often the error
        is in a cycle with a frame of it.
        """
        error.__traceback__ = None
        if error.closes:
            self.close(error.code, error.message, error.id)
        else:
            self.daemon.meters.error(error.code, error.message, error.id or "", self)
            self.send(p.error_event(error.id, error.code, error.message, error.overflow))

    def _handle(self, body: bytes, arrived_ns: int) -> None:
        message = p.parse_message(body, self.daemon.limits)
        handle = self._generate if isinstance(message, p.Generate) else self._administer
        self._guarded(handle, message, arrived_ns)

    def _administer(self, message: AdminMessage, arrived_ns: int) -> None:
        self.daemon.admin.handle(self, message)

    def _generate(self, message: p.Generate, arrived_ns: int) -> None:
        if message.id in self.requests:
            text = f'"id" {message.id!r} is in flight on this connection already'
            raise p.ProtocolError(p.E_PROTO_004, text, id=message.id)
        if self.daemon.stopping:
            raise p.ProtocolError(p.E_LIMIT_002, p.STOPPING, id=message.id)
        self.daemon.sessions.submit(self, message, arrived_ns)

    async def flushed(self) -> None:
        """Returns when nothing waits to be sent."""
        await self._outbox.empty.wait()
