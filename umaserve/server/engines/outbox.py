"""Frames on their way to a client or an engine: sent at once where the socket takes them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import trio


class Outbox:
    """Bytes that a connection still has to send.

    ``put`` collects frames, ``flush`` sends them with one system call; what the socket does not
    take is left to ``run``.  When more than ``limit`` bytes stay unsent behind the frame that is
    being sent, all frames not begun are dropped and ``overflowed`` is set.  The caller
    says goodbye with one last frame.
    """

    def __init__(
        self, sock: socket.socket, limit: int, on_held: Callable[[int], None] = lambda more: None
    ) -> None:
        """``on_held`` hears by how many bytes what waits here has grown, or shrunk."""
        self._sock = sock
        self._on_held = on_held
        self._held = 0  # as `on_held` knows it
        self._limit = limit
        self._buffer = bytearray()
        self._ends: deque[int] = deque()  # of the frames in the buffer, as counts of bytes ever put
        self._put = 0
        self._sent = 0
        self._boundary = 0  # end of the last frame that was sent whole
        self._more = trio.Event()
        self.empty = trio.Event()
        self.empty.set()
        self.overflowed = False
        self.broken = False  # the peer is gone

    def put(self, frame: bytes) -> None:
        if self.broken:
            return
        self._buffer += frame
        self._put += len(frame)
        self._ends.append(self._put)

    def flush(self) -> None:
        self._send()
        # an answer may be longer than the limit by itself: its client has had no time to read it
        if len(self._buffer) - self._of_first() > self._limit and not self.overflowed:
            self.overflowed = True
            self._drop_unbegun()
        if self._buffer:
            self.empty = trio.Event() if self.empty.is_set() else self.empty
            self._more.set()

    def send_now(self) -> bool:
        """`flush` where the socket takes everything, without touching trio: False if it does not,
        or did not the last time; `flush` is to be called then."""
        if not self.empty.is_set():
            return False
        self._send()
        return not (self._buffer or self.broken)

    def _send(self) -> None:
        buffer = self._buffer
        try:
            while buffer and not self.broken:
                count = self._sock.send(buffer)
                del buffer[:count]
                self._sent += count
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
            buffer.clear()
        if len(buffer) != self._held:
            self._on_held(len(buffer) - self._held)
            self._held = len(buffer)
        ends = self._ends
        while ends and ends[0] <= self._sent:
            self._boundary = ends.popleft()
        if not buffer:
            self.empty.set()

    def _of_first(self) -> int:
        """Unsent bytes of the frame that is being sent, or is next."""
        return self._ends[0] - self._sent if self._ends else 0

    def _drop_unbegun(self) -> None:
        keep = self._of_first() if self._sent > self._boundary else 0
        del self._buffer[keep:]
        self._on_held(keep - self._held)
        self._held = keep
        self._put = self._sent + keep
        self._ends.clear()
        if keep:
            self._ends.append(self._put)

    def forget(self) -> None:
        """Nothing waits here any more, sent or not."""
        self.broken = True
        self._buffer.clear()
        self._on_held(-self._held)
        self._held = 0

    async def run(self) -> None:
        """Send what ``flush`` could not; until cancelled or broken."""
        while not self.broken:
            await self._more.wait()
            self._more = trio.Event()
            while self._buffer and not self.broken:
                await trio.lowlevel.wait_writable(self._sock)
                self._send()
