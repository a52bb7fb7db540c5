"""Background beside other models' requests: told by the front, it leaves them the machine."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import trio

from tests.support.engine_driver import DrivenEngine
from tests.support.server_harness import eventually
from umaserve.engine.loop.neighbours import REST_MS, SHARE, Neighbours
from umaserve.server.supervision import neighbours as front
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.states import AUTO_SUNK


def table_with(*lanes: int) -> t.SessionTable:
    table, descriptor = t.SessionTable.create(t.TableSpec(4, 16))
    os.close(descriptor)
    for slot, lane in enumerate(lanes):
        table.state[slot], table.lane[slot] = t.RUNNING, lane
    return table


@pytest.mark.parametrize(
    ("lanes", "auto", "awaited", "rests"),
    [
        ((m.LANE_BACKGROUND,), t.LABELLED, True, True),
        ((m.LANE_BACKGROUND,), t.LABELLED, False, False),
        ((m.LANE_BACKGROUND, m.LANE_INTERACTIVE), t.LABELLED, True, False),
        ((m.LANE_BACKGROUND,), AUTO_SUNK, True, False),  # a prompt that somebody waits for
        ((), t.LABELLED, True, False),
    ],
)
def test_only_background_rests(
    lanes: tuple[int, ...], auto: int, awaited: bool, rests: bool
) -> None:
    table = table_with(*lanes)
    table.auto[: len(lanes)] = auto
    neighbours = Neighbours(table)
    neighbours.are_awaited = awaited
    assert neighbours.rest_ms == 0
    neighbours.ran(time.monotonic_ns() - 100_000_000)  # a tick of 100 ms
    assert (neighbours.rest_ms == REST_MS) == rests


def test_background_has_a_small_share_while_others_wait_for_another_engine() -> None:
    with DrivenEngine(n_seq=2) as engine:
        header = engine.table.header
        background = engine.submit("def f():", max_tokens=1900, lane=m.LANE_BACKGROUND)
        engine.send(m.GiveWay(True))
        eventually(lambda: header.handled >= 2, "the engine has heard of it")
        since_ns, before_ns, ticks = time.monotonic_ns(), header.tick_ns_total, header.ticks
        eventually(lambda: header.ticks >= ticks + 12, "it goes on")
        share = (header.tick_ns_total - before_ns) / (time.monotonic_ns() - since_ns)
        assert share < 5 * SHARE
        engine.wait(engine.submit("def g():", max_tokens=8))  # nobody waits for it in vain
        assert engine.table.state[engine.slots[background]] == t.RUNNING
        engine.send(m.GiveWay(False))
        engine.wait(background)


def test_ticks_before_the_background_is_alone_are_not_made_up_for() -> None:
    """They are many in one run, and belong to whoever waited for this engine."""
    with DrivenEngine(n_seq=2, cache_bytes=0) as engine:  # else a run has 64 ticks at most
        header = engine.table.header
        engine.submit("def f():", max_tokens=1900, lane=m.LANE_BACKGROUND)
        engine.send(m.GiveWay(True))
        began_ns = time.monotonic_ns()
        engine.wait(engine.submit("def g():", max_tokens=600))
        took_ns, ticks = time.monotonic_ns() - began_ns, header.ticks
        eventually(lambda: header.ticks >= ticks + 3, "the background goes on")
        assert time.monotonic_ns() - began_ns < 6 * took_ns


class FakeHandle:
    """Stands for an engine of the front."""

    def __init__(self) -> None:
        self.ready, self.alive = object(), True
        self.requests: dict[int, Any] = {}
        self.told: list[bool] = []

    def send(self, message: m.GiveWay) -> None:
        self.told.append(message.on)

    def runs(self, *lanes: int) -> None:
        self.requests = {n: FakeRequest(lane) for n, lane in enumerate(lanes)}


class FakeRequest:
    def __init__(self, lane: int) -> None:
        self.lane = lane


def test_engines_are_told_of_each_other(autojump_clock: trio.testing.MockClock) -> None:
    chat, coder, idle = engines = [FakeHandle() for _ in range(3)]

    async def later() -> None:
        await trio.sleep(2 * front.IDLE_LOOK_S)

    async def check() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front.tell_neighbours, lambda: engines)
            coder.runs(m.LANE_BACKGROUND)
            await later()
            assert not coder.told
            chat.runs(m.LANE_INTERACTIVE, m.LANE_BACKGROUND)
            await later()
            assert coder.told == [True] and not chat.told and not idle.told
            coder.runs(m.LANE_INTERACTIVE)
            await later()
            assert chat.told == [True] and coder.told == [True]
            chat.runs()
            await later()
            assert coder.told == [True, False]
            coder.runs()
            chat.runs(m.LANE_BACKGROUND)
            await later()
            assert chat.told == [True, False]
            coder.alive = False
            coder.runs(m.LANE_INTERACTIVE)
            await later()
            assert chat.told == [True, False]
            nursery.cancel_scope.cancel()

    trio.run(check, clock=autojump_clock)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)
