"""Texts that clients want tokenised or encoded: few at a time, in turns, beside all requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio

from umaserve.budget import Budget
from umaserve.protocol import E_LIMIT_002, ProtocolError
from umaserve.server.requests.queue.turns import Line, Turns

WAITING = 256  # of all programs; one alone may have half


class Questions:
    """The line before what the engine does with texts: ``done`` says what that is.  An engine that
    has ``at_once`` questions is slowed by these at most, and a program with many waits for itself.
    """

    def __init__(self, done: str = "tokenised", at_once: int = 1) -> None:
        self._done, self._at_once = done, at_once
        self._line = Line[trio.Event]()
        self._turns = Turns()
        self._room = Budget(WAITING)
        self._asked = 0  # questions that the engine has

    @asynccontextmanager
    async def turn(self, program: Hashable) -> AsyncIterator[None]:
        """The engine takes our question while the context lasts.

        Raises ``ProtocolError`` (``E_LIMIT_002``) where too many texts of ``program`` wait.
        """
        if not self._room.take(program, 1):
            text = f"{self._room.held_by(program)} texts of this program wait to be {self._done}"
            raise ProtocolError(E_LIMIT_002, f"{text} already; wait for some of them")
        turn, ours = self._turns.take(program), trio.Event()
        self._line.add(turn, ours)
        try:
            self._next()
            await ours.wait()
            self._turns.begin(turn)
            yield
        finally:
            if turn in self._line:  # the asker has gone
                self._line.remove(turn)
            else:
                self._asked -= 1
            self._turns.leave(turn)
            self._room.change(program, -1)
            self._next()

    def _next(self) -> None:
        if self._asked >= self._at_once:
            return
        event = self._line.pop_first()
        if event is not None:
            self._asked += 1
            event.set()
