"""TLS before HTTP: handshakes that are bounded in time, and count as connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Hashable
from typing import Any

from umaserve.gateway import room

HANDSHAKE_S = 10.0
ACCEPT_RETRY_S = 0.1  # where the system has no descriptor left


class Handshake:
    """A connection on which TLS has not begun: its request is not whole."""

    stage = room.UNFINISHED

    def __init__(self, sock: socket.socket, holder: Hashable) -> None:
        self.asked, self.holder = room.next_order(), holder
        self._sock = sock
        self._task: asyncio.Task[Any] | None = None

    def begin(
        self, context: ssl.SSLContext, protocol: asyncio.Protocol, end: Callable[[Handshake], None]
    ) -> None:
        """Begin it in the background; ``end`` is called when it is over, well or not."""
        self._task = asyncio.ensure_future(self._run(context, protocol))
        self._task.add_done_callback(lambda _: end(self))

    async def _run(self, context: ssl.SSLContext, protocol: asyncio.Protocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, self._sock, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.TimeoutError):
            self._sock.close()
        except asyncio.CancelledError:
            self._sock.close()
            raise

    def close_now(self) -> None:
        """End it; nobody waits for an answer."""
        if self._task is not None:
            self._task.cancel()


async def accept(listening: socket.socket, enter: Callable[[socket.socket], None]) -> None:
    """Take connections until cancelled; ``enter`` owns each."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = await loop.sock_accept(listening)
        except OSError:
            await asyncio.sleep(ACCEPT_RETRY_S)
        else:
            enter(sock)
