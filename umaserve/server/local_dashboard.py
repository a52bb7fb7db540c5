"""The daemon's own dashboard: the same screen as ``umaserve top``, fed without a socket."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from umaserve.server.request import LANES

if TYPE_CHECKING:
    from umaserve.server.daemon import Daemon


class DaemonFeed:
    """A ``Feed`` of the daemon in this process."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def run(
        self,
        interval_s: float,
        show: Callable[[Mapping[str, Any]], None],
        lost: Callable[[str], None],
    ) -> None:
        while True:
            show(self._daemon.admin.overview.read())
            await trio.sleep(interval_s)

    async def cancel(self, serial: int) -> bool:
        request = self._daemon.sessions.live.get(serial)
        if request is None or request.told:
            return False
        self._daemon.sessions.cancel(request)
        return True

    async def set_lane(self, serial: int, lane: str) -> bool:
        request = self._daemon.sessions.live.get(serial)
        if request is None or request.told:
            return False
        self._daemon.sessions.set_lane(request, LANES[lane])
        return True


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
