"""What may wait for the end of a chunk beside the ticks, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from umaserve.engine import messages as m
from umaserve.engine import table as t
from umaserve.engine.gate import OPEN, UNTIL, WHOLE
from umaserve.engine.prefill_orders import Orders
from umaserve.engine.steady import AWAITED, PATIENCE_NS, SINCE, can_wait
from umaserve.policy.base import SchedulerState

NOW = 10**12


class Scene:
    """A stream that decodes, a background prompt, and a chunk that goes on through the ticks."""

    def __init__(self) -> None:
        self.table, fd = t.SessionTable.create(t.TableSpec(4, 64))
        os.close(fd)
        table = self.table
        self.state = SchedulerState.of(table, np.zeros(4, np.int64), np.zeros(4, np.int32))
        self.orders = Orders.allocate(4, -1)
        self.patience = np.zeros(2, np.int64)
        for slot, lane, left in ((0, m.LANE_INTERACTIVE, 1), (1, m.LANE_BACKGROUND, 30)):
            table.state[slot], table.lane[slot] = t.RUNNING, lane
            table.n_tokens[slot], table.n_past[slot] = 40, 40 - left
        self.orders.turns[0] = 5
        self.orders.gate[WHOLE], self.orders.gate[UNTIL] = 1, OPEN

    def waits(self, now: int = NOW) -> bool:
        return bool(can_wait(self.table.header, self.state, self.orders, self.patience, now))


@pytest.fixture
def scene() -> Iterator[Scene]:
    yield Scene()


def test_background_matters_wait_for_the_chunk_but_not_for_ever(scene: Scene) -> None:
    assert scene.waits() and scene.patience[SINCE] == NOW
    assert scene.waits(NOW + PATIENCE_NS - 1) and scene.patience[SINCE] == NOW
    assert not scene.waits(NOW + PATIENCE_NS)
    scene.patience[SINCE] = 0  # Python was there
    assert scene.waits(NOW + PATIENCE_NS)


def test_nothing_waits_between_two_chunks_or_for_one_that_stops(scene: Scene) -> None:
    scene.orders.turns[0] = 6
    assert not scene.waits()
    scene.orders.turns[0] = 7
    scene.orders.gate[WHOLE] = 0
    assert not scene.waits()
    assert scene.patience[SINCE] == 0


@pytest.mark.parametrize("what", ["sent", "tokenised", "prefill"])
def test_nothing_waits_that_somebody_interactive_asked_for(scene: Scene, what: str) -> None:
    table = scene.table
    if what == "sent":
        table.header[t.H_URGENT] += 1
    elif what == "tokenised":
        scene.patience[AWAITED] = 1
    else:
        table.state[2], table.lane[2] = t.RUNNING, m.LANE_INTERACTIVE
        table.n_tokens[2] = 20
    assert not scene.waits()


def test_nothing_waits_where_nobody_streams(scene: Scene) -> None:
    scene.table.lane[0] = m.LANE_BACKGROUND
    assert not scene.waits()
    scene.table.lane[0], scene.table.state[0] = m.LANE_INTERACTIVE, t.DONE
    assert not scene.waits()
