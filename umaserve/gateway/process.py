"""The server itself: sockets that listen already, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn

from umaserve.gateway import tls
from umaserve.gateway.app import Routes
from umaserve.gateway.daemon.link import Link
from umaserve.gateway.guard import Guard, Say
from umaserve.gateway.http_protocol import GatewayProtocol, protocol_for
from umaserve.gateway.keys import Keys
from umaserve.gateway.room import whose
from umaserve.gateway.settings import Settings

Ready = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], None]

BACKLOG = 512
GOODBYE_S = 2  # for answers that are under way when the gateway ends
FOR_EVER_S = 10**8
DATE_S = 1.0  # that the date of answers may be old
HEADERS = [("server", "umaserve"), ("x-content-type-options", "nosniff")]


async def serve(
    settings: Settings,
    keys: Keys,
    sockets: Sequence[socket.socket],
    say: Say,
    ready: Ready,
) -> None:
    """Serve until the function that ``ready`` was given is called; no signal counts.

    ``ready`` is called once requests are taken, with the loop and with that function.
    """
    # what it would say holds lines of requests; what matters the guard says
    logging.getLogger("uvicorn").disabled = logging.getLogger("uvicorn.error").disabled = True
    link = Link(settings.socket, settings.image_urls)
    config = uvicorn.Config(
        Guard(Routes(settings, link), settings, keys, link, say),
        http=protocol_for(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        ssl_keyfile_password="",  # else one is asked of the terminal
        headers=HEADERS,
        backlog=BACKLOG,
        timeout_keep_alive=int(settings.idle_timeout_s) or FOR_EVER_S,
        timeout_graceful_shutdown=GOODBYE_S,
    )
    server = _Server(config, lambda: ready(asyncio.get_running_loop(), end))

    def end() -> None:
        server.should_exit = True
        server.ending.set()

    keeping = asyncio.ensure_future(link.keep())
    try:
        await server.serve(list(sockets))
    finally:
        keeping.cancel()
        link.close()


class _Server(uvicorn.Server):
    """``on_started`` is called when all sockets are served; no signal counts.

    ``ending`` is set with ``should_exit``.  uvicorn itself looks ten times a second.
    """

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self.ending = asyncio.Event()
        self._accepting: list[asyncio.Task[None]] = []  # with TLS

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ending.wait(), DATE_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            for sock in sockets or ():
                taking = tls.accept(sock, partial(self._enter, self.config.ssl))
                self._accepting.append(asyncio.ensure_future(taking))
        await self.on_tick(0)  # the headers of every answer
        self._on_started()

    def _enter(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        made = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        assert isinstance(made, GatewayProtocol)
        made.handshake = tls.Handshake(sock, whose(sock, made.peers, made.settings)[0])
        if made.room.has_place(made.handshake, made.connections):
            made.room.handshakes.add(made.handshake)
            made.handshake.begin(context, made, made.room.handshakes.discard)
        else:
            sock.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self._accepting:
            each.cancel()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
