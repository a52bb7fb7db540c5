"""Files of pictures that one HTTP request names by address: each is fetched once, within bounds."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Sequence

TOO_MANY = "the pictures of this request have more than {} MiB"
MAX_ADDRESSES = 16  # of one request, the newest
TOO_MANY_ADDRESSES = f"a request has at most {MAX_ADDRESSES} addresses of pictures"
MAX_BYTES = 16 << 20  # of a file, as uma-eyes takes
WITHIN_S = 20.0  # for all of a request
MOST_BYTES = 256 << 20  # of all requests together
NO_ROOM = "too many pictures are fetched at this time"


class Fetched:
    """Files in base64, or the reasons for none, by address.

    ``forget`` frees what they take of ``MOST_BYTES``.
    """

    taken = 0  # bytes, of all requests

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self._bytes = 0
        self._left_s = WITHIN_S

    async def add(self, urls: Sequence[str], most_bytes: int) -> None:
        """Fetch the files that are new, in order, as far as ``most_bytes`` of base64 go."""
        for url in dict.fromkeys(urls):
            if url not in self.data and url not in self.why:
                await self._add(url, most_bytes * 3 // 4 - self._bytes, most_bytes)

    async def _add(self, url: str, left: int, most_bytes: int) -> None:
        from umaserve.gateway.daemon.addresses import NotFetched, fetch

        most = min(left, MAX_BYTES)
        if len(self.data) + len(self.why) >= MAX_ADDRESSES:
            self.why[url] = TOO_MANY_ADDRESSES
        elif most <= 0:
            self.why[url] = TOO_MANY.format(most_bytes >> 20)
        elif Fetched.taken + most > MOST_BYTES:
            self.why[url] = NO_ROOM
        else:
            began_s = asyncio.get_running_loop().time()
            Fetched.taken += most
            size = 0
            try:
                file = await fetch(url, most, max(self._left_s, 0.001))
                # base64 of some megabytes takes the loop's time
                self.data[url] = await asyncio.to_thread(_base64, file)
                size = len(file)
            except NotFetched as error:
                self.why[url] = str(error)
            finally:
                Fetched.taken += size - most
                self._bytes += size
                self._left_s -= asyncio.get_running_loop().time() - began_s

    def forget(self) -> None:
        """Give the files' bytes back; they are not fetched again."""
        self.data.clear()
        Fetched.taken -= self._bytes
        self._bytes = 0


def _base64(file: bytes) -> str:
    return binascii.b2a_base64(file, newline=False).decode()
