"""Connection of a client: received bytes, requests, and events that are sent.

A connection that fails ends alone: its requests are cancelled, all other connections go on.

Long: one connection, in and out.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import trio

from umaserve.protocol import (
    E_IO_001,
    E_LIMIT_002,
    E_LIMIT_004,
    E_PROTO_004,
    E_RUNTIME_001,
    STOPPING,
    Beginning,
    Ending,
    FrameDecoder,
    Generate,
    ProtocolError,
    Rated,
    Timings,
    TokenEncoder,
    Usage,
    begin_event,
    delta_event,
    echo_event,
    eos_event,
    error_event,
    parse_message,
    progress_event,
    prompt_logprobs_event,
)
from umaserve.server.clients.outbox import Outbox
from umaserve.server.log.lines import trace
from umaserve.server.requests.request import LANE_NAMES, Request
from umaserve.system.peer import Peer

if TYPE_CHECKING:
    from umaserve.server.clients.served_by import AdminMessage, ServedBy

READ_BYTES = 256 * 1024
HANDLE_S = 0.001  # then it is the others' turn
GOODBYE_S = 2.0  # to deliver the last frames of a connection that closes
LINGER_BYTES = 16 * 1024 * 1024  # of a refused client's input, read and thrown away meanwhile
HALF_CLOSED_POLL_S = 0.25
FRAME_S = 30.0  # from the first byte of a frame to its last


@dataclass
class _Taken:
    """Messages that were read together and wait to be handled, and what is wrong after them."""

    arrived_ns: int
    bodies: deque[bytes]
    failure: ProtocolError | None = None

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(map(len, self.bodies))


def program_of(peer: Peer, number: int) -> int:
    """The program of connection ``number``: itself where the system does not say who connects."""
    return peer.pid or -number


class Connection:
    """A client on the Unix socket; the sink of its requests' events."""

    def __init__(self, daemon: ServedBy, sock: socket.socket, number: int, peer: Peer) -> None:
        self.daemon = daemon
        self.label = f"c{number}"
        self._number = number
        self.peer = peer
        self.relays = False  # it asks for several programs
        self.requests: dict[str, Request] = {}
        self.answering: Counter[int] = Counter()  # admin messages, by program
        self.keeps_alive = 0  # streams and admin answers under way
        self.questions: dict[str, trio.CancelScope] = {}  # of these, what has an id
        self.nursery: trio.Nursery
        self._sock = sock
        self._decoder = FrameDecoder(daemon.limits.max_frame_bytes)
        self._outbox = Outbox(sock, daemon.config.max_unsent_bytes, self._unsent)
        self._encoders: dict[int, TokenEncoder] = {}  # by serial
        self._active_s = trio.current_time()
        self._partial = 0  # bytes of a frame that is not whole
        self._held = 0  # with those of whole ones that wait: as the budget knows it
        self._frame_s = 0.0  # when it was begun
        self._closing = trio.Event()  # the last frame is in the outbox
        self._reading = trio.CancelScope()
        self._at_hand = _Taken(0, deque())

    @cached_property
    def app(self) -> str:
        """Its name when it was first asked for: the number may be another process later."""
        return self.peer.app

    @property
    def program(self) -> int:
        return program_of(self.peer, self._number)

    # --- events out -------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue one frame and send it; nothing once the connection closes."""
        if not self._closing.is_set():
            self._outbox.put(frame)
            self.flush()

    def token(self, request: Request, text: str, token: int, rated: Rated | None) -> None:
        if not self._closing.is_set():
            self._outbox.put(self._encoders[request.serial](text, token, rated))

    def delta(self, request: Request, delta: dict[str, Any]) -> None:
        if not self._closing.is_set():
            self._outbox.put(delta_event(request.id, delta))

    def begun(self, request: Request) -> None:
        if not self._closing.is_set():
            lane, why = request.lane_now()
            ready, usage = request.engine and request.engine.ready, request.usage()
            beginning = Beginning(
                lane=LANE_NAMES[lane],
                lane_reason=why,
                deltas=request.reply is not None,
                model=ready.model_name if ready else "",
                usage={name: getattr(usage, name) for name in ("prompt_tokens", "cached_tokens")},
                open_parts=request.open_parts or None,
                unread=request.message.chat.unread or None,
            )
            self._outbox.put(begin_event(request.id, beginning))

    def progress(self, request: Request, processed: int) -> None:
        if not self._closing.is_set():
            self._outbox.put(progress_event(request.id, processed))

    def echo(self, request: Request, text: str) -> None:
        if not self._closing.is_set():
            self._outbox.put(echo_event(request.id, text, request.prompt_ids or ()))

    def prompt_logprobs(self, request: Request, logprobs: list[dict[str, Any]]) -> None:
        if not self._closing.is_set():
            self._outbox.put(prompt_logprobs_event(request.id, logprobs))

    def end(
        self, request: Request, reason: str, usage: Usage, timings: Timings, message: Any = None
    ) -> None:
        self._forget(request)
        if self._closing.is_set():
            return
        asked = request.message
        is_said = reason in ("stop", "tool_calls")
        stop = request.stop if is_said else None
        ending = Ending(
            reason=reason,
            stop=stop,
            stop_token=request.end_token if is_said and stop is None else None,
            text=None if asked.stream else "".join(request.parts),
            tokens=request.tokens if asked.return_tokens and not asked.stream else None,
            logprobs=None if asked.stream or request.sampling.logprobs < 0 else request.logprobs,
            message=message,
            dropped_tokens=request.dropped or None,
            unread=asked.chat.unread or None,
            open_parts=request.open_parts or None,
            usage=usage,
            timings=timings,
            metadata=asked.metadata,
        )
        self._outbox.put(eos_event(request.id, ending))

    def error(self, request: Request, code: str, message: str, *, final: bool) -> None:
        if final:
            self._forget(request)
        if not self._closing.is_set():
            self._outbox.put(error_event(request.id, code, message, request.overflow))

    def flush(self) -> None:
        self._outbox.flush()
        if self._closing.is_set():
            return
        if self._outbox.overflowed:
            limit = self.daemon.config.max_unsent_bytes
            self.close(E_IO_001, f"more than {limit} bytes wait here unread; the connection closes")
        elif not self._outbox.empty.is_set() and self.daemon.unsent.is_over(self.program):
            text = "what this program does not read fills its share of the daemon's memory"
            self.close(E_IO_001, f"{text}; this connection closes")

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
            self._outbox.put(error_event(id, code, message))
            self._closing.set()
            self._reading.cancel()
            self._drop_partial()
            self._outbox.flush()

    def abandon(self) -> None:
        self._closing.set()
        self._reading.cancel()

    def _unsent(self, more: int) -> None:
        self.daemon.unsent.change(self.program, more)

    def _forget(self, request: Request) -> None:
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self._encoders.pop(request.serial, None)
        self._active_s = trio.current_time()

    # --- bytes in ---------------------------------------------------------------------------------

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

    def begin(self) -> None:
        """Take a request that came with the connection, before a task is set up for it.

        The engine begins meanwhile.  Whatever else came is left to `run`.
        """
        try:
            data = self._sock.recv(READ_BYTES)
        except OSError:
            return  # nothing yet, or the client is gone, which `run` finds out
        if not data:
            return
        self._at_hand = taken = self._take(data)
        if taken.bodies:
            try:
                message = parse_message(taken.bodies[0], self.daemon.limits)
            except ProtocolError:
                return
            if isinstance(message, Generate):
                taken.bodies.popleft()
                self._guarded(self._generate, message, taken.arrived_ns)

    def end_all(self) -> None:
        """Its requests are cancelled, its socket is closed."""
        self._closing.set()
        try:
            for request in list(self.requests.values()):
                self.daemon.sessions.cancel(request, gone=True)
            self.requests.clear()
        finally:
            self._outbox.forget()
            self._drop_partial()
            self._sock.close()

    async def _close_on_goodbye(self) -> None:
        """Once closing: end the requests, deliver what is queued, let the client read it."""
        await self._closing.wait()
        for request in list(self.requests.values()):
            self.daemon.sessions.cancel(request, gone=True)
        with trio.move_on_after(GOODBYE_S):
            await self._outbox.empty.wait()
            # bytes that the client has sent and nobody read would turn our last frame into a reset
            self._shutdown_writing()
            await self._discard()
        self.nursery.cancel_scope.cancel()

    def _shutdown_writing(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            self._outbox.broken = True

    async def _discard(self) -> None:
        left = LINGER_BYTES
        while left > 0:
            size = len(await self._receive())  # and nothing of it is kept while the next is awaited
            if not size:
                return
            left -= size

    async def _receive(self) -> bytes:
        """Bytes from the client; empty at their end."""
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

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
                self.daemon.sessions.expect_request()
            began_s = time.thread_time()
            taken = self._take(data)
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
        if self._partial:
            wait_s = min(wait_s, max(0.05, self._frame_s + FRAME_S - trio.current_time()))
        data = None
        with trio.move_on_after(wait_s) as self._reading:
            data = await self._receive()
        if data is not None or self._closing.is_set():
            return data
        if self._end_slow_frame():
            return None
        if self.requests or self.keeps_alive:
            self._active_s = trio.current_time()
        elif idle_s and trio.current_time() >= self._active_s + idle_s:
            self.close(E_LIMIT_004, f"nothing was asked for {idle_s:g} s; the connection closes")
        return None

    def _end_slow_frame(self) -> bool:
        """Close the connection where a frame takes too long, however often a byte of it comes."""
        if not self._partial or trio.current_time() < self._frame_s + FRAME_S:
            return False
        text = f"a frame that began {FRAME_S:g} s ago is not whole; the connection closes"
        self.close(E_LIMIT_004, text)
        return True

    async def _finish_half_closed(self) -> None:
        """The client sends no more.  Answer what it asked for, unless it is gone altogether."""
        poll = select.poll()
        poll.register(self._sock, 0)  # hang-up is always reported
        while self.requests or self.keeps_alive or not self._outbox.empty.is_set():
            if self._outbox.broken or self._closing.is_set() or poll.poll(0):
                return
            with trio.move_on_after(HALF_CLOSED_POLL_S):
                await self._closing.wait()

    def _take(self, data: bytes) -> _Taken:
        arrived_ns = time.monotonic_ns()
        self._decoder.max_frame_bytes = self.daemon.limits.max_frame_bytes
        try:
            taken = _Taken(arrived_ns, deque(self._decoder.feed(data)))
        except ProtocolError as error:
            # without its traceback, which keeps all that was fed
            failure = ProtocolError(error.code, error.message, error.closes)
            taken = _Taken(arrived_ns, deque(error.frames), failure)
        self._note_held(taken)
        return taken

    def _note_held(self, taken: _Taken) -> None:
        """Count the decoder's incomplete frame and the waiting frames against their program."""
        pending, budget = self._decoder.pending, self.daemon.partial
        if pending and (taken.bodies or not self._partial):
            self._frame_s = trio.current_time()
        self._partial = pending
        if self._hold(pending + taken.size) > 0 and budget.is_over(self.program):
            text = "frames of this program that are not whole, or wait, fill its share of the"
            text += " daemon's memory; this connection closes"
            taken.failure = taken.failure or ProtocolError(E_LIMIT_002, text, True)
            taken.bodies.clear()

    def _hold(self, size: int) -> int:
        """Tell the budget of so many bytes; return by how many they are more."""
        grown, self._held = size - self._held, size
        if grown:
            self.daemon.partial.change(self.program, grown)
        return grown

    def _drop_partial(self) -> None:
        self._decoder.drop()
        self._partial = 0
        self._hold(0)

    async def _handle_all(self, taken: _Taken) -> None:
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
        self._hold(self._partial)
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
        except ProtocolError as error:
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
        self.refuse(ProtocolError(E_RUNTIME_001, text, id=id))

    def refuse(self, error: ProtocolError) -> None:
        """Tell the client about a message that was not taken.

        The error is over then.  Its traceback goes, as it would keep the message: often the error
        is in a cycle with a frame of it.
        """
        error.__traceback__ = None
        if error.closes:
            self.close(error.code, error.message, error.id)
        else:
            self.daemon.meters.error(error.code, error.message, error.id or "", self)
            self.send(error_event(error.id, error.code, error.message, error.overflow))

    def _handle(self, body: bytes, arrived_ns: int) -> None:
        message = parse_message(body, self.daemon.limits)
        if isinstance(message, Generate):
            self._guarded(self._generate, message, arrived_ns)
        else:
            self._guarded(self._administer, message, arrived_ns)

    def _administer(self, message: AdminMessage, arrived_ns: int) -> None:
        self.daemon.admin.handle(self, message)

    def _generate(self, message: Generate, arrived_ns: int) -> None:
        if message.id in self.requests:
            text = f'"id" {message.id!r} is in flight on this connection already'
            raise ProtocolError(E_PROTO_004, text, id=message.id)
        if self.daemon.stopping:
            raise ProtocolError(E_LIMIT_002, STOPPING, id=message.id)
        self.daemon.sessions.submit(self, message, arrived_ns, self._begin)

    def _begin(self, request: Request) -> None:
        """Before the first event of a request can come."""
        self.requests[request.id] = request
        self._encoders[request.serial] = TokenEncoder(request.id)

    async def flushed(self) -> None:
        """Returns when nothing waits to be sent."""
        await self._outbox.empty.wait()
