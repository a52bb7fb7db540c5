"""Which connection gives way where all are taken.

A connection belongs to a holder.  That is the API key of its newest request, else the user at its
other end where the system tells that, else the address.  A newcomer takes the place of a
connection of its own holder, or of a holder with more connections.  First goes a connection whose
request is not whole, then a connection without a request.  A request that is being answered is
never cut off.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections import Counter
from collections.abc import Collection, Hashable
from typing import Any, Protocol

from umaserve.gateway.settings import Settings
from umaserve.system.tcp_peer import NOBODY, TcpPeers

UNFINISHED, IDLE, BUSY = range(3)  # the order in which they go
next_order = itertools.count().__next__  # the loop's clock stands still while it takes several
NETWORK_BITS = 64  # of an address of IPv6, which one program may have all of


class Held(Protocol):
    """``asked`` grows with each connection and each request."""

    asked: int

    @property
    def holder(self) -> Hashable: ...

    @property
    def stage(self) -> int: ...

    def close_now(self) -> None: ...


class Room:
    """``handshakes`` are connections on which TLS has not begun: they count like the others."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.handshakes: set[Held] = set()

    def has_place(self, newcomer: Held, connections: Collection[Any]) -> bool:
        """Return whether ``newcomer`` may stay; another one may have been closed for it."""
        others = [each for each in (*connections, *self.handshakes) if each is not newcomer]
        if len(others) < self.most:
            return True
        counts = Counter(each.holder for each in others)
        own = newcomer.holder
        going = [
            each
            for each in others
            if each.stage < BUSY and (each.holder == own or counts[each.holder] > counts[own] + 1)
        ]
        if not going:
            return False
        min(going, key=lambda each: (each.stage, -counts[each.holder], each.asked)).close_now()
        return True


def holder_at(address: str, uid: int) -> Hashable:
    """The holder where no key is known.  ``uid`` is negative where the user is not known."""
    if uid >= 0:
        return "user", uid
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "address", address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if isinstance(ip, ipaddress.IPv6Address):
        return "address", int(ip) >> (128 - NETWORK_BITS)
    return "address", str(ip)


def whose(sock: socket.socket, peers: TcpPeers, settings: Settings) -> tuple[Hashable, int | None]:
    """The holder of a connection, and the user at its other end where it is to be looked up."""
    try:
        if sock.family == socket.AF_UNIX:
            return holder_at("", settings.owner), None
        theirs, ours = sock.getpeername()[:2], sock.getsockname()[:2]
    except OSError:  # it left already
        return holder_at("", NOBODY), NOBODY
    uid = peers.uid(theirs, ours)
    by_user = settings.owner >= 0 and not settings.api_key_file
    return holder_at(theirs[0], uid), uid if by_user else None
