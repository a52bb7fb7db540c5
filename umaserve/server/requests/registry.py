"""Registry of all requests that are not over."""

from __future__ import annotations

import trio

from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.request import Request


class Registry:
    """``live`` are the requests that are not over, by serial, in order of arrival."""

    def __init__(self) -> None:
        self.live: dict[int, Request] = {}
        self._changed = trio.Event()

    def add(self, request: Request) -> None:
        self.live[request.serial] = request

    def remove(self, request: Request) -> None:
        """A request has had its last event; nothing happens where it is removed already."""
        if self.live.pop(request.serial, None) is not None:
            request.service.over(request)
        self._changed.set()
        self._changed = trio.Event()

    def of(self, engine: EngineHandle | None) -> list[Request]:
        """Requests of an engine, or of the engine that replaced it; ``None``: all requests."""
        if engine is None:
            return list(self.live.values())
        newest = engine.newest
        return [*newest.requests.values(), *newest.backlog.values()]

    async def until_idle(self, engine: EngineHandle | None) -> None:
        """Wait until `of` has nothing more."""
        while self.of(engine):
            await self._changed.wait()
