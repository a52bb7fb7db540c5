"""The daemon's own dashboard: the same screen as ``umaserve top``, fed without a socket."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import trio

from umaserve.protocol import ProtocolError
from umaserve.server.requests.request import LANES, Request

if TYPE_CHECKING:
    from umaserve.dashboard.app import Lost, Show
    from umaserve.dashboard.view import Model
    from umaserve.server.daemon import Daemon


class DaemonFeed:
    """A ``Feed`` of the daemon in this process."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def run(self, interval_s: float, show: Show, lost: Lost) -> None:
        while True:
            show(self._daemon.admin.overview.read())
            await trio.sleep(interval_s)

    async def cancel(self, serial: int) -> bool:
        request = self._running(serial)
        if request is not None:
            self._daemon.sessions.ends.cancel(request)
        return request is not None

    async def set_lane(self, serial: int, lane: str) -> bool:
        request = self._running(serial)
        if request is not None:
            self._daemon.sessions.set_lane(request, LANES[lane])
        return request is not None

    def models(self) -> list[Model]:
        from umaserve.dashboard.app import models_here

        return models_here(self._daemon.config.model_dir)

    async def load(self, path: str) -> str:
        try:
            await self._daemon.admin.serve(path, lambda fraction, stage: None)
        except ProtocolError as error:
            return str(error)
        return ""

    def _running(self, serial: int) -> Request | None:
        request = self._daemon.sessions.live.get(serial)
        return None if request is None or request.told else request


async def show_dashboard(daemon: Daemon) -> None:
    """Draw until cancelled, or until the terminal is gone; the log is kept back meanwhile, where
    it would be written over the screen."""
    from umaserve.dashboard import Dashboard, Terminal, View

    terminal = Terminal()
    daemon.log.hold = not terminal.plain and sys.stderr.isatty()
    view = View(local=True, where=daemon.config.socket)
    try:
        await Dashboard(DaemonFeed(daemon), view, terminal=terminal).run()
    finally:
        daemon.log.release()
