"""The engine's end of its two wires to the front: the control socket and the wake pipe."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import cast

from . import messages as m


class Control:
    """Messages in and out of the engine process.

    The engine has one thread that talks here; ``notify`` alone may be called from another one, to
    end a ``wait`` (the tokeniser does).  Owns the socket, the wake pipe's write end and its own
    self-pipe.
    """

    def __init__(self, control_fd: int, wake_fd: int) -> None:
        self._socket = socket.socket(fileno=control_fd)
        self._socket.setblocking(False)
        self.wake_fd = wake_fd
        os.set_blocking(wake_fd, False)
        self._self_read, self._self_write = os.pipe()
        os.set_blocking(self._self_read, False)
        os.set_blocking(self._self_write, False)
        self._channel = m.Channel("engine")
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._self_read, select.POLLIN)
        self.poll_fds = [control_fd, self._self_read]  # readable: something to receive
        self.closed = False  # the front is gone

    def receive(self, timeout_ms: int | None) -> list[m.ToEngine]:
        """Messages that have come; waits up to ``timeout_ms`` (None = for ever, 0 = not at all)."""
        out: list[m.ToEngine] = []
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._self_read:
                os.read(self._self_read, 4096)
                continue
            while True:
                try:
                    data = self._socket.recv(1 << 20)
                except BlockingIOError:
                    break
                except ConnectionError:
                    data = b""
                if not data:
                    self.closed = True
                    return out
                out.extend(cast("list[m.ToEngine]", self._channel.feed(data)))
                if len(data) < 1 << 20:
                    break
        return out

    def has_something(self, timeout_ms: int = 0) -> bool:
        """Whether `receive` would return at once; waits up to ``timeout_ms`` for it."""
        return bool(self._poll.poll(timeout_ms))

    def look_out(self, limit_s: float) -> list[m.ToEngine]:
        """Poll without sleeping until a message comes, or for ``limit_s``."""
        end = time.monotonic() + limit_s
        messages: list[m.ToEngine] = []
        while not messages and not self.closed and time.monotonic() < end:
            messages = self.receive(0)
        return messages

    def send(self, message: m.ToFront) -> None:
        """Send one message; waits for room, since the front always reads."""
        data = memoryview(m.encode(message))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                select.select([], [self._socket], [])
            except ConnectionError:
                self.closed = True
                return

    def wake(self) -> None:
        """Tell the front that the table changed.  A full pipe means it has been told already."""
        try:
            os.write(self.wake_fd, b"\0")
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.closed = True

    def notify(self) -> None:
        """End a ``receive`` that waits in another thread."""
        try:
            os.write(self._self_write, b"\0")
        except BlockingIOError:
            return  # it will wake for the bytes that are there
