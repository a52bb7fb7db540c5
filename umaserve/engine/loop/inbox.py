"""Messages of the front, and how many of them the loop handles before the next tick.

A message takes up to some milliseconds, since short texts are tokenised on arrival.  A program may
send any number.  So while somebody decodes the messages have a share of the time between tokens;
what is left waits for the next tick.
"""

from __future__ import annotations

import time
from itertools import takewhile

from umaserve.engine.admission.admission import Admission
from umaserve.engine.model.loaded import Setup
from umaserve.engine.seats.full_rows import FullRows
from umaserve.engine.seats.seats import Seats
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .aside_texts import AsideTexts
from .neighbours import Neighbours

LEAST_S = 0.002
AT_ANY_TIME = (m.Submit, m.Release, m.Tokenize, m.Embed)  # under a decode too
SHARE = 0.2  # of the time between tokens of the interactive sessions alone


class Inbox:
    """For the loop's thread.  ``later``: messages that wait for the next tick."""

    def __init__(
        self, setup: Setup, admission: Admission, texts: AsideTexts, seats: Seats, full: FullRows,
        neighbours: Neighbours,
    ) -> None:  # fmt: skip
        self._table, self._control, self._neighbours = setup.table, setup.control, neighbours
        self._admission, self._texts, self._seats, self._full = admission, texts, seats, full
        self.later: list[m.ToEngine] = []

    def handle_some(self, messages: list[m.ToEngine]) -> None:
        """Handle messages in order, one at least; the others wait for the next tick."""
        table = self._table
        if len(messages) < 2 or t.RUNNING not in table.state.tolist():
            for message in messages:
                self.handle(message)
            return
        share_s = SHARE * table.header.baseline_ns / 1e9
        until_s = time.monotonic() + max(LEAST_S, share_s)
        for done, message in enumerate(messages, 1):
            self.handle(message)
            if time.monotonic() > until_s:
                self.later += messages[done:]
                return

    @property
    def is_left(self) -> bool:
        """Whether messages wait for the next tick, or the front is gone."""
        return bool(self.later) or self._control.closed

    def handle_under_way(self) -> None:
        """Handle new messages in order, up to the first that waits for the end of a decode."""
        messages = self._control.receive(0)
        now = [] if self.later else list(takewhile(self._can_be_handled, messages))
        self.handle_some(now)
        self.later += messages[len(now) :]

    def _can_be_handled(self, message: m.ToEngine) -> bool:
        if isinstance(message, m.Release) and self._table.state[message.slot] == t.FULL:
            return False  # it has cells
        return isinstance(message, AT_ANY_TIME)

    def handle(self, message: m.ToEngine) -> None:
        """Do what a message asks for."""
        if isinstance(message, m.Submit | m.SetLane | m.Cancel) and message.is_urgent:
            self._table.abort.urgent_seen += 1
        if isinstance(message, m.Submit):
            self._admission.submit(message)
        elif isinstance(message, m.Cancel):
            self._cancel(message.serial)
        elif isinstance(message, m.SetLane):
            slot = self._admission.slot_of(message.serial)
            if slot >= 0:
                self._table.lane[slot] = message.lane
                self._table.auto[slot] = t.LABELLED
        elif isinstance(message, m.GiveWay):
            self._neighbours.are_awaited = message.on
        elif isinstance(message, m.Shift):
            self._full.shift(message)
        elif isinstance(message, m.Release):
            self._full.let_go(message.slot)
            self._admission.release(message.slot, message.serial)
        elif isinstance(message, m.Tokenize | m.Embed):
            self._admission.tokenize(message)
        elif isinstance(message, m.Forget):
            self._admission.forget(message.ref)
            self._texts.forget(message.ref)
        elif isinstance(message, m.AskCache):
            self._control.send(self._seats.prefixes.report.message(message.ref))
        self._table.header.handled += 1

    def _cancel(self, serial: int) -> None:
        if self._admission.cancel_pending(serial) or self._texts.cancel(serial):
            return
        slot = self._admission.slot_of(serial)
        if slot >= 0 and self._table.state[slot] in (t.WAITING, t.RUNNING):
            self._seats.end(slot, t.REASON_CANCEL)
