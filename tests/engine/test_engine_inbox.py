"""However many messages come, ticks go on between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from umaserve.engine.loop import inbox
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.header import Header

MS = 1_000_000


class Slow(inbox.Inbox):
    """Its messages take a millisecond each, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: int, baseline_ms: float) -> None:
        self.now_s = 0.0
        self.handled: list[Any] = []
        header = Header.fresh()
        header.baseline_ns = int(baseline_ms * MS)
        table = SimpleNamespace(state=np.array([t.FREE, state]), header=header)
        nothing: Any = SimpleNamespace(table=table, control=None)
        super().__init__(nothing, nothing, nothing, nothing, nothing, nothing)
        monkeypatch.setattr(inbox.time, "monotonic", lambda: self.now_s)

    def handle(self, message: m.ToEngine) -> None:
        self.now_s += 0.001
        self.handled.append(message)


def handled(slow: Slow, count: int) -> int:
    messages: list[Any] = [m.Cancel(serial) for serial in range(count)]
    slow.handle_some(messages)
    assert slow.handled + slow.later == messages, "in order, and none is lost"
    return len(slow.handled)


def test_all_at_once_while_nobody_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handled(Slow(monkeypatch, t.WAITING, 10), 50) == 50


def test_a_share_of_the_time_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handled(Slow(monkeypatch, t.RUNNING, 50.5), 50) == 11


def test_some_where_ticks_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handled(Slow(monkeypatch, t.RUNNING, 1), 50) == 3
    assert handled(Slow(monkeypatch, t.RUNNING, 0), 1) == 1
