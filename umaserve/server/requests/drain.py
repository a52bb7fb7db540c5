"""Draining: requests of an engine, or of the daemon, end in a bounded time."""

from __future__ import annotations

import trio

from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.life import Answer
from umaserve.server.requests.request import Request

GRACE_S = 2.0  # from the cancellation of a request to its next token


async def drain(
    ends: Ends, engine: EngineHandle | None, limit_s: float, why: tuple[str, str]
) -> None:
    """Wait until an engine and its replacement have no request left; None: the whole daemon.

    After ``limit_s`` the rest is ended with the code and the text of ``why``.
    """
    registry = ends.registry
    with trio.move_on_after(limit_s):
        await registry.until_idle(engine)
        return
    for request in registry.of(engine):
        _cut(ends, request, why)
    with trio.move_on_after(GRACE_S):
        await registry.until_idle(engine)
        return
    for request in registry.of(engine):  # the engine does not even get to the next token
        request.reply = None
        try:
            ends.tell_failure(request, *why)
            ends.tell(request, "error")
        except Exception as error:
            ends.broke(request, error)
        ends.flush(request.sink)


def _cut(ends: Ends, request: Request, why: tuple[str, str]) -> None:
    """End a request at its next token, and tell its client why."""
    if request.answer is not Answer.OPEN:
        return
    if request.engine is None:
        ends.refuse([request], *why)
        return
    request.failure = why
    ends.cancel(request)
