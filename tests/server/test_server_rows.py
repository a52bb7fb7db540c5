"""Rows of the session table: a request is in one when the engine has filled it, and not before."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from umaserve.protocol import Limits, parse_message
from umaserve.server.requests.life import Stage
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request
from umaserve.server.requests.rows import Rows
from umaserve.wire import table as t

SLOT, FORMER, SERIAL = 1, 6, 7


class Column:
    """A column of the table, of which each read is the last before the engine goes on."""

    def __init__(self, values: np.ndarray, goes_on: Any) -> None:
        self._values, self._goes_on = values, goes_on

    def item(self, slot: int) -> int:
        value: int = self._values.item(slot)
        self._goes_on()
        return value


class Rig:
    """A row whose former request has ended: the engine has yet to see its release."""

    def __init__(self) -> None:
        self.table, fd = t.SessionTable.create(t.TableSpec(4, 64))
        os.close(fd)
        row = {"serial": FORMER, "state": t.DONE, "n_prompt": 3, "n_tokens": 9, "max_tokens": 6}
        for name, value in row.items():
            getattr(self.table, name)[SLOT] = value
        self.table.tokens[SLOT, :9] = range(100, 109)
        message: Any = parse_message(b'{"id":"a","prompt":"x"}', Limits())
        sink: Any = SimpleNamespace(label="test", app="test")
        self.request = Request.create(SERIAL, sink, message, 0, 20)
        self.request.slot = SLOT
        self.request.enter(Stage.SUBMITTED)

    def accept(self, table: Any) -> None:
        unused: Any = None
        engine: Any = SimpleNamespace(table=table, ready=None)
        Rows(unused, unused, unused, Meters(), 0).accept(engine, self.request)

    def give_anew(self) -> None:
        """What `Admission.release` and `Admission.submit` do first."""
        if self.table.serial[SLOT] == FORMER:
            self.table.serial[SLOT] = 0
            self.table.state[SLOT] = t.FREE
            self.table.serial[SLOT] = SERIAL

    def fill(self) -> None:
        self.table.tokens[SLOT, :2] = [1, 2]
        self.table.n_prompt[SLOT] = self.table.n_tokens[SLOT] = 2
        self.table.state[SLOT] = t.WAITING


def test_a_row_that_is_given_anew_between_two_reads_is_not_the_former_ones() -> None:
    rig = Rig()
    columns = {
        name: Column(getattr(rig.table, name), rig.give_anew)
        for name in ("serial", "state", "n_prompt", "n_tokens", "max_tokens")
    }
    read: Any = SimpleNamespace(tokens=rig.table.tokens, **columns)
    for _ in range(3):
        rig.accept(read)
        assert rig.request.stage is not Stage.RUNNING and rig.request.prompt_ids is None
    rig.fill()
    rig.accept(read)
    assert rig.request.stage is Stage.RUNNING and rig.request.prompt_ids == [1, 2]
