"""The requests that one HTTP request begins at the daemon, and what comes of them."""

from __future__ import annotations

import asyncio
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.fetched import Fetched
from umaserve.gateway.daemon.link import Connection, Link, with_model
from umaserve.gateway.daemon.refusal import of_daemon
from umaserve.protocol import E_LIMIT_003, encode_frame

MAX_WAITING = 100_000  # events that nobody has taken: their reader has stopped
LONG_S = 3600.0

Numbered = tuple[int, Event]


class Exchange:
    """``next`` gives events with the number of their request, in the order of ``begin``.

    ``cancel`` has to be called in the end; it ends what still runs.  ``is_gone`` is true when
    nobody wants the events any more.  ``begun`` has the ``begin`` events, by the same numbers.
    """

    def __init__(self, link: Link) -> None:
        self.is_gone = False
        self.begun: dict[int, Event] = {}
        self._link, self._files = link, Fetched()
        self._events: list[Numbered] = []
        self._more: asyncio.Future[None] | None = None
        self._running: dict[str, Connection] = {}
        self._ids: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether all have ended, and all of it was taken."""
        return not self._running and not self._events

    async def begin(self, message: dict[str, Any], trim: bool = True) -> None:
        """Ask for text.  Raises ``Refusal`` without a daemon.

        ``trim``: ``max_tokens`` is what HTTP means by it, the most that may come.  Where limit or
        context leave less, the answer is shorter, and the request is not refused.
        """
        id, number = self._link.new_id(), len(self._ids)
        self._ids.append(id)
        tells = message.get("begin") is True
        message = with_model({**message, "id": id, "begin": True})
        message = await self._link.fit(message, self._files)
        most = message.get("max_tokens")
        if trim and self._link.max_tokens and isinstance(most, int | float):
            message["max_tokens"] = min(most, self._link.max_tokens)

        def take(event: Event) -> None:
            if event.code == E_LIMIT_003 and trim and message.pop("max_tokens", None) is not None:
                connection.requests[id] = take
                connection.send(message)  # for as many as the context leaves
                return
            if event.event == "begin":
                self.begun[number] = event
                if not tells:
                    return
            if event.is_last:
                self._running.pop(id, None)
            self._events.append((number, event))
            if len(self._events) > MAX_WAITING:
                self.leave()
            self._wake()

        frame = encode_frame(message)
        await self._link.check_size(len(frame))
        connection = await self._link.connection()
        connection.requests[id] = take
        self._running[id] = connection
        connection.write(frame)

    async def next(self, within_s: float = LONG_S) -> list[Numbered]:
        """All that has come, at least one event; empty where nothing came in time."""
        if not self._events and not self.is_gone:
            loop = asyncio.get_running_loop()
            more = self._more = loop.create_future()
            timer = loop.call_later(within_s, self._wake)
            try:
                await more
            finally:
                timer.cancel()
                self._more = None
        events, self._events = self._events, []
        return events

    async def whole(self) -> list[Event]:
        """The end of each request.  Raises the first ``Refusal`` of the daemon."""
        ends: dict[int, Event] = {}
        rated: dict[int, list[dict[str, Any]]] = {}
        while len(ends) < len(self._ids):
            for number, event in await self.next():
                if event.event == "error":
                    raise of_daemon(event)
                if event.event == "prompt_logprobs":
                    rated.setdefault(number, []).extend(event.logprobs or ())
                if event.event == "eos":
                    event.rated = rated.get(number)
                    if (begun := self.begun.get(number)) is not None:
                        event.lane, event.lane_reason = begun.lane, begun.lane_reason
                        event.model = begun.model
                    ends[number] = event
        return [ends[number] for number in range(len(self._ids))]

    def leave(self) -> None:
        """Nobody wants the events any more."""
        self.is_gone = True
        self.cancel()
        self._wake()

    def cancel(self) -> None:
        """End what runs at its next token; nothing more comes."""
        self._files.forget()
        for id, connection in self._running.items():
            connection.requests.pop(id, None)
            connection.send({"type": "cancel", "id": id})
        self._running.clear()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
