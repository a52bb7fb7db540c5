"""Pictures that a request names by their address on the web: fetched from public servers alone.

Whoever may ask could otherwise have this machine ask its own network.  So each host is resolved
here, and the connection goes to an address that was looked at.  That holds for redirections too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Any

import anyio
import httpcore2
import httpx2

MAX_REDIRECTIONS = 3
REDIRECTED = (301, 302, 303, 307, 308)
HEADERS = [("User-Agent", "umaserve"), ("Accept", "image/*"), ("Accept-Encoding", "identity")]
GLOBAL = ipaddress.ip_network("2000::/3")  # all that is routed; some others count as global
# networks whose addresses hold another address, which a relay of this network may reach
RELAYED = tuple(map(ipaddress.ip_network, ("2002::/16", "2001::/32")))


class NotFetched(Exception):
    """Reason that a picture was not fetched, for the sentence in its place."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet."""
    found = ipaddress.ip_address(address)
    found = getattr(found, "ipv4_mapped", None) or found
    if found.version == 6 and (found not in GLOBAL or any(found in each for each in RELAYED)):
        return False
    return found.is_global and not found.is_multicast


async def fetch(
    url: str, most_bytes: int, within_s: float, allowed: Callable[[str], bool] = is_public
) -> bytes:
    """Return the file behind ``url``, of ``most_bytes`` at most.  Raises `NotFetched`.

    ``allowed``: whether a connection to an IP address may be made.
    """
    pool = httpcore2.AsyncConnectionPool(_tls(), network_backend=_Network(allowed))
    try:
        with anyio.fail_after(within_s):
            async with pool:
                return await _file(pool, httpx2.URL(url), most_bytes)
    except TimeoutError:
        why = f"its server took more than {within_s:.0f} s"
    except (httpcore2.UnsupportedProtocol, httpx2.InvalidURL):
        why = "its address is of no web server"
    except (
        httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError,
        ValueError, TypeError,
    ) as error:  # fmt: skip
        why = f"its server cannot be asked ({str(error) or type(error).__name__})"
    raise NotFetched(why)


async def _file(pool: httpcore2.AsyncConnectionPool, url: httpx2.URL, most_bytes: int) -> bytes:
    for _ in range(1 + MAX_REDIRECTIONS):
        at = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        async with pool.stream("GET", at, headers=HEADERS) as response:
            if response.status in REDIRECTED:
                headers = {name.lower(): value for name, value in response.headers}
                url = url.join(headers.get(b"location", b"").decode(errors="replace"))
                continue
            if response.status != 200:
                raise NotFetched(f"its server answered with status {response.status}")
            found = bytearray()
            async for piece in response.aiter_stream():
                found += piece
                if len(found) > most_bytes:
                    raise NotFetched(f"its file has more than {most_bytes >> 20} MiB")
            return bytes(found)
    raise NotFetched(f"its server redirects more than {MAX_REDIRECTIONS} times")


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


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
