"""Intake of a client's bytes: whole frames, the one that is not whole, and the room of both."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from dataclasses import dataclass

import trio

from umaserve.protocol import E_LIMIT_002, FrameDecoder, ProtocolError
from umaserve.server.clients.shares import FrameBudget

READ_BYTES = 256 * 1024
LINGER_BYTES = 16 * 1024 * 1024  # of a refused client's input, read and thrown away
FRAME_S = 30.0  # from the first byte of a frame to its last


@dataclass
class Taken:
    """Messages that were read together and wait to be handled, and what is wrong after them."""

    arrived_ns: int
    bodies: deque[bytes]
    failure: ProtocolError | None = None


class Intake:
    """``program`` takes its part of ``budget``."""

    def __init__(self, program: int, budget: FrameBudget, max_frame_bytes: int) -> None:
        self.partial = 0  # bytes of a frame that is not whole
        self._program = program
        self._budget = budget
        self._decoder = FrameDecoder(max_frame_bytes)
        self._held = 0  # with those of whole ones that wait: as the budget knows it
        self._frame_s = 0.0  # when it was begun

    @property
    def frame_left_s(self) -> float:
        """Seconds in which the unfinished frame has to end."""
        return self._frame_s + FRAME_S - trio.current_time()

    @property
    def why_slow(self) -> str:
        """Text for a client whose frame takes too long, however often a byte comes; else empty."""
        if not self.partial or self.frame_left_s > 0.0:
            return ""
        return f"a frame that began {FRAME_S:g} s ago is not whole; the connection closes"

    def take(self, data: bytes, max_frame_bytes: int) -> Taken:
        """Split off the messages that are whole now."""
        arrived_ns = time.monotonic_ns()
        self._decoder.max_frame_bytes = max_frame_bytes
        try:
            taken = Taken(arrived_ns, deque(self._decoder.feed(data)))
        except ProtocolError as error:
            # without its traceback, which keeps all that was fed
            failure = ProtocolError(error.code, error.message, error.closes)
            taken = Taken(arrived_ns, deque(error.frames), failure)
        pending = self._decoder.pending
        if pending and (taken.bodies or not self.partial):
            self._frame_s = trio.current_time()
        self.partial = pending
        waiting = sum(map(len, taken.bodies))
        if self._hold(pending + waiting) > 0 and self._budget.is_over(self._program):
            text = "frames of this program that are not whole, or wait, fill its share of the"
            text += " daemon's memory; this connection closes"
            taken.failure = taken.failure or ProtocolError(E_LIMIT_002, text, True)
            taken.bodies.clear()
        return taken

    def handled(self) -> None:
        """All messages that were taken are handled."""
        self._hold(self.partial)

    def drop(self) -> None:
        """Forget the unfinished frame; nothing more is to come."""
        self._decoder.drop()
        self.partial = 0
        self._hold(0)

    def _hold(self, size: int) -> int:
        """Tell the budget of so many bytes; return by how many they are more."""
        grown, self._held = size - self._held, size
        if grown:
            self._budget.change(self._program, grown)
        return grown


async def receive(sock: socket.socket) -> bytes:
    """Bytes from a client; empty at their end."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(READ_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return b""


async def discard(sock: socket.socket) -> None:
    """Send nothing more, and throw away what a refused client still sends, up to a limit."""
    with contextlib.suppress(OSError):  # gone already
        sock.shutdown(socket.SHUT_WR)
    left = LINGER_BYTES
    while left > 0:
        size = len(await receive(sock))  # and nothing of it is kept while the next is awaited
        if not size:
            return
        left -= size
