"""Pictures that a request names by their address on the web: fetched from public servers alone.

Whoever may ask could otherwise have this machine ask its own network.  So each host is resolved
here, and the connection goes to an address that was looked at.  That holds for redirections too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import anyio
import httpcore2

MAX_BYTES = 16 << 20  # of a file, as uma-eyes takes
WITHIN_S = 20.0
MAX_REDIRECTIONS = 3
REDIRECTED = (301, 302, 303, 307, 308)
HEADERS = [("User-Agent", "umaserve"), ("Accept", "image/*"), ("Accept-Encoding", "identity")]
# networks whose addresses hold another address, which a relay of this network may reach
RELAYED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "2002::/16", "2001::/32")))


class NotFetched(Exception):
    """Reason that a picture was not fetched, for the sentence in its place."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet."""
    found = ipaddress.ip_address(address)
    found = getattr(found, "ipv4_mapped", None) or found
    is_relayed = any(found in network for network in RELAYED)
    return found.is_global and not found.is_multicast and not is_relayed


async def fetch(url: str, allowed: Callable[[str], bool] = is_public) -> bytes:
    """Return the file behind ``url``.  Raises `NotFetched`.

    ``allowed``: whether a connection to an IP address may be made.
    """
    try:
        with anyio.fail_after(WITHIN_S):
            async with httpcore2.AsyncConnectionPool(network_backend=_Network(allowed)) as pool:
                return await _file(pool, url)
    except TimeoutError:
        why = f"its server took more than {WITHIN_S:g} s"
    except httpcore2.UnsupportedProtocol:
        why = "its address is of no web server"
    except (
        httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError,
        ValueError,
    ) as error:  # fmt: skip
        why = f"its server cannot be asked ({str(error) or type(error).__name__})"
    raise NotFetched(why)


async def _file(pool: httpcore2.AsyncConnectionPool, url: str) -> bytes:
    for _ in range(1 + MAX_REDIRECTIONS):
        async with pool.stream("GET", url, headers=HEADERS) as response:
            if response.status in REDIRECTED:
                headers = {name.lower(): value for name, value in response.headers}
                url = urljoin(url, headers.get(b"location", b"").decode("ascii"))
                continue
            if response.status != 200:
                raise NotFetched(f"its server answered with status {response.status}")
            found = bytearray()
            async for piece in response.aiter_stream():
                found += piece
                if len(found) > MAX_BYTES:
                    raise NotFetched(f"its file has more than {MAX_BYTES >> 20} MiB")
            return bytes(found)
    raise NotFetched(f"its server redirects more than {MAX_REDIRECTIONS} times")


class _Network(httpcore2.AsyncNetworkBackend):
    """Connections to allowed addresses alone."""

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed, self._network = allowed, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None,
        local_address: str | None = None, socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:  # fmt: skip
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        if not all(map(self._allowed, addresses)):
            raise NotFetched(f"{host} is not on the public internet")
        how = port, timeout, local_address, socket_options
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._network.connect_tcp(address, *how)
        return await self._network.connect_tcp(addresses[-1], *how)
