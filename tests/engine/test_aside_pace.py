"""How long a piece beside the requests may be, by who decodes and when each is due."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

import pytest

from umaserve.engine.loop import aside_pace
from umaserve.engine.loop.aside_pace import ALL, HARD, NOTHING, allowed_now
from umaserve.policy.base import KIND_DECODE, Knobs, Memory
from umaserve.policy.latency_guard import SPARE
from umaserve.wire import table as t

KNOBS = Knobs(512, 0, 50.0, 1.2, 25.0, True, True, 0)
BASE = 20.0  # ms
NOW = 10**12


class Rows:
    def __init__(self) -> None:
        self.table, fd = t.SessionTable.create(t.TableSpec(8, 65))
        os.close(fd)
        self.memory = Memory.fresh(8)
        self.table.credit[:] = 0.5

    def add(self, slot: int, *, lane: int = 0, left: int = 1, late_ms: float = 0.0) -> None:
        """A running row that feeds ``left`` tokens next, with a last token so long ago."""
        table = self.table
        table.state[slot], table.lane[slot] = t.RUNNING, lane
        table.n_tokens[slot], table.n_past[slot] = 10, 10 - left
        table.t_last_ns[slot] = NOW - int(late_ms * 1e6)
        if lane == 0 and left == 1:
            n = self.memory.found[KIND_DECODE] = self.memory.found[KIND_DECODE] + 1
            self.memory.round_ms[0, n], self.memory.group[0, n] = BASE, n

    def allowed(self, awaited: int = 0, tick: int = 0) -> aside_pace.Allowed:
        return allowed_now(self.table, self.memory, KNOBS, awaited, tick)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rows]:
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW)
    yield Rows()


def test_alone_there_is_all_the_time(rows: Rows) -> None:
    assert rows.allowed() == ALL
    rows.add(0, lane=1)
    rows.add(1, lane=1, left=9)
    assert rows.allowed() == ALL and rows.allowed(tick=1) == ALL


def test_none_while_a_first_token_is_waited_for(rows: Rows) -> None:
    assert rows.allowed(awaited=1) == NOTHING
    rows.add(0)
    assert rows.allowed().now_ms > 0.0
    rows.add(1, left=9)
    assert rows.allowed() == NOTHING


def test_a_stream_leaves_what_its_cap_does(rows: Rows) -> None:
    rows.add(0)
    now_ms, most_ms = rows.allowed()
    assert now_ms == pytest.approx(0.2 * BASE - SPARE * BASE)
    assert most_ms == pytest.approx((HARD - 1 - SPARE) * BASE)
    rows.table.cap[0] = 1.5
    assert rows.allowed().now_ms == pytest.approx(0.5 * BASE - SPARE * BASE)
    rows.table.t_last_ns[0] = NOW - int(8e6)
    assert rows.allowed().now_ms == pytest.approx(0.5 * BASE - 8 - SPARE * BASE)
    rows.table.t_last_ns[0] = NOW - int(100e6)
    assert rows.allowed().now_ms == 0.0


def test_credit_allows_a_piece_of_nearly_a_turn(rows: Rows) -> None:
    rows.add(0)
    rows.table.credit[0] = 2.0
    assert rows.allowed().now_ms == pytest.approx((HARD - 1 - SPARE) * BASE)
    rows.add(1)  # whose credit is less
    assert rows.allowed().now_ms == pytest.approx(0.2 * BASE - SPARE * BASE)


def test_streams_that_take_turns(rows: Rows) -> None:
    rows.add(0, late_ms=BASE / 2)
    rows.add(1)
    rows.memory.group[0, 2] = 1
    # the first one is due after half a round, and has waited for the other half
    assert rows.allowed().now_ms == pytest.approx(0.2 * BASE - SPARE * BASE)


def test_where_the_background_rides_every_other_tick_is_its_own(rows: Rows) -> None:
    rows.add(0)
    rows.add(1, lane=1)
    assert rows.allowed(tick=2).now_ms > 0.0 and rows.allowed(tick=3) == NOTHING


def test_before_anything_is_known_the_last_tick_tells(rows: Rows) -> None:
    rows.add(0)
    rows.memory.round_ms[:] = 0.0
    rows.table.header.last_decode_ns = int(10e6)
    assert rows.allowed().now_ms == pytest.approx(0.2 * 10 - SPARE * 10)
    assert not math.isinf(rows.allowed().most_ms)
