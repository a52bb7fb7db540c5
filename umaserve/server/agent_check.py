"""State of this node for a load balancer: HAProxy's agent check.

A client that connects gets one line, then the connection ends (HAProxy's configuration manual,
"agent-check").  ``up ready N%``: new requests are begun here, with N % of the usual weight.
``drain``: running requests end, new requests are refused.  ``down``: no model is served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

import trio

from umaserve.config import Config, host_and_port
from umaserve.server.clients.listener import SocketError
from umaserve.server.gateway.listener import check_exposed
from umaserve.server.log.lines import trace
from umaserve.server.overview import state

if TYPE_CHECKING:
    from umaserve.server.overview import Watched

LOOK_S = 1.0  # between two looks at the figures, however often others ask
SEND_S = 5.0  # for a client that does not read
MOST_OPEN = 16  # connections that may stay: each takes a descriptor from the daemon's clients
LEAST, MOST = 1, 100
STEP = 10  # per cent: smaller changes are not told, since each moves sessions
RISE = 0.5  # of what is missing comes back with each look; a fall is told at once


@asynccontextmanager
async def open_agent_check(config: Config) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen at an ``--agent-check`` address while the context lasts; empty for ``off``.

    Raises ``SocketError``, which says what to do: also where other machines could ask and the
    daemon has no API keys.
    """
    address = config.agent_check
    listeners: list[trio.SocketListener] = []
    if address != "off":
        host, port = host_and_port(address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            text = f"--agent-check {address}: {error.strerror or error}; name another port"
            raise SocketError(text) from None
    try:
        ips = [listener.socket.getsockname()[0].partition("%")[0] for listener in listeners]
        if not all(ip_address(ip).is_loopback for ip in ips):
            check_exposed(f"--agent-check {address}", config)
        yield listeners
    finally:
        for listener in listeners:
            listener.socket.close()


class AgentCheck:
    """Tells the state of a daemon to whoever connects."""

    def __init__(self, daemon: Watched) -> None:
        self._daemon = daemon
        self._weight = NodeWeight()
        self._percent, self._looked_s = 100, 0.0
        self._open = 0

    def line(self) -> str:
        """The answer now, without its line break."""
        now = state(self._daemon)
        if now == "stopping":
            return "drain"
        return f"up ready {self._look()}%" if now in ("serving", "asleep") else "down"

    def _look(self) -> int:
        now_s = trio.current_time()
        if now_s >= self._looked_s + LOOK_S:
            self._looked_s = now_s
            numbers = self._daemon.scorecard.read()
            waiting = numbers["queued_interactive"] + numbers["queued_background"]
            self._percent = self._weight.look(
                numbers["uma_p95_headroom"], numbers["uma_bandwidth_headroom"], waiting
            )
        return self._percent

    async def answer(self, stream: trio.SocketStream) -> None:
        """Answer a client; a fault costs one answer, and the others are answered."""
        self._open += 1
        try:
            await self._tell(stream)
        except Exception as error:
            self._daemon.log("error", f"the agent check failed: {trace(error)}")
        finally:
            self._open -= 1
        await trio.aclose_forcefully(stream)

    async def _tell(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(SEND_S):
            try:
                await stream.send_all(self.line().encode() + b"\n")
                await stream.send_eof()
                if self._open > MOST_OPEN:  # however many stay, each is told
                    return
                while await stream.receive_some(4096):  # what it has sent is not answered
                    pass
            except (trio.BrokenResourceError, OSError):
                pass


class NodeWeight:
    """Weight of this node; remembers the weight told last, so that the weight does not swing."""

    def __init__(self) -> None:
        self._told = MOST

    def look(self, p95_headroom: float, bandwidth_headroom: float | None, waiting: int) -> int:
        """The weight in per cent, once a look.

        ``p95_headroom`` and ``bandwidth_headroom`` are 0 to 1: what is left to the latency cap and
        of the bandwidth budget (``None``: nobody knows).  ``waiting``: requests that have no
        sequence yet; each halves the weight, as far as three.
        """
        free = min(p95_headroom, 1.0 if bandwidth_headroom is None else bandwidth_headroom)
        wanted = max(MOST * free * 0.5 ** min(waiting, 3), LEAST)
        ends = wanted in (LEAST, MOST)
        if wanted > self._told:
            wanted = min(self._told + max(RISE * (wanted - self._told), STEP), wanted)
        if abs(wanted - self._told) >= STEP or ends:
            self._told = round(wanted)
        return self._told
