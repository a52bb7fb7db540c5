"""A daemon's numbers over its socket; one that restarts is found again."""

from __future__ import annotations

import trio

from umaserve.client import ConnectionFailed, ProtocolError, ServerError, TrioClient
from umaserve.dashboard.app import Lost, Show, models_here
from umaserve.dashboard.view import Model

RETRY_S = 0.5
SILENCE_S = 10.0  # a daemon that says nothing for so long is lost


class SocketFeed:
    """A ``Feed`` of the daemon at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._client: TrioClient | None = None

    async def run(self, interval_s: float, show: Show, lost: Lost) -> None:
        while True:
            try:
                async with TrioClient(self.path) as self._client:
                    await self._watch(self._client, interval_s, show)
            except (ConnectionFailed, ServerError, ProtocolError) as error:
                lost(f"{error}\n\nwaiting for a daemon at {self.path} (q or Ctrl-C leaves)")
            finally:
                self._client = None
            await trio.sleep(RETRY_S)

    async def _watch(self, client: TrioClient, interval_s: float, show: Show) -> None:
        # the deadline moves with every answer; a generator must not be left in the middle
        with trio.CancelScope(deadline=trio.current_time() + SILENCE_S) as patience:
            async for overview in client.watch_overview(1000 * interval_s):
                patience.deadline = trio.current_time() + interval_s + SILENCE_S
                show(overview)
        raise ConnectionFailed(f"the daemon at {self.path} says nothing; is it stopped or stuck?")

    async def cancel(self, serial: int) -> bool:
        client = self._client
        try:
            return client is not None and await client.cancel(serial)
        except (ConnectionFailed, ServerError):
            return False

    async def set_lane(self, serial: int, lane: str) -> bool:
        client = self._client
        if client is None:
            return False
        try:
            await client.priority(serial, lane)
        except (ConnectionFailed, ServerError):
            return False
        return True

    def models(self) -> list[Model]:
        return models_here()

    async def load(self, path: str) -> str:
        client = self._client
        try:
            if client is None:
                return "there is no daemon now"
            await client.load(path)
        except (ConnectionFailed, ServerError) as error:
            return str(error)
        return ""
