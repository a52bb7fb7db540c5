"""Engines are told whether somebody waits for another one: their background gives way then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from umaserve.server.engines.handle import EngineHandle
from umaserve.wire import messages as m

LOOK_S = 0.02  # between two looks while several engines have requests
IDLE_LOOK_S = 0.25


async def tell_neighbours(engines: Callable[[], Sequence[EngineHandle]]) -> None:
    """Tell each engine that has requests, when that changes; until cancelled."""
    told: set[EngineHandle] = set()  # that somebody waits for another one
    while True:
        here = [each for each in engines() if each.ready is not None and each.alive]
        told &= set(here)
        awaited = [each for each in here if is_awaited(each)]
        for engine in here:
            gives_way = any(each is not engine for each in awaited)
            if engine.requests and gives_way != (engine in told):
                engine.send(m.GiveWay(gives_way))
                told ^= {engine}
        at_work = sum(bool(each.requests) for each in here)
        await trio.sleep(LOOK_S if at_work > 1 else IDLE_LOOK_S)


def is_awaited(engine: EngineHandle) -> bool:
    """Whether an interactive request has a row of the engine."""
    return any(request.lane == m.LANE_INTERACTIVE for request in engine.requests.values())
