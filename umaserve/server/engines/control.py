"""Bytes to an engine, through the front's end of its control socket."""

from __future__ import annotations

import socket

import trio

from umaserve.wire import messages as m


class ControlSender:
    """Never blocks: what the socket does not take is left to `run`.

    What is sent before `open` or after `close` is lost.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._out = bytearray()
        self._later = bytearray()
        self._ready = trio.Event()

    def open(self, control: socket.socket) -> None:
        self._socket = control

    def close(self) -> None:
        self._socket = None
        self._out.clear()

    def send(self, data: bytes) -> None:
        """Send a message, behind all those that could wait."""
        self._out += self._later + data
        self._later.clear()
        self._write()
        if self._out:
            self._ready.set()

    def send_along(self, data: bytes) -> None:
        """Keep a message for the next `send`."""
        self._later += data

    def nudge(self) -> None:
        """Send an empty message, if nothing else is on its way."""
        if not self._out:
            self._out += m.NUDGE
            self._write()

    def _write(self) -> None:
        if self._socket is None:
            self._out.clear()
            return
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError:  # it is gone; its exit is noticed by the watcher of the process
            self._out.clear()

    async def run(self) -> None:
        """Write until cancelled."""
        assert self._socket is not None
        while True:
            await self._ready.wait()
            self._ready = trio.Event()
            while self._out:
                await trio.lowlevel.wait_writable(self._socket)
                self._write()
