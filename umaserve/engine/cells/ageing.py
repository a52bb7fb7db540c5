"""Ageing at the door to the KV cache: background gets a place although interactive requests wait.

Without it, more interactive sessions than sequences would keep background out for ever.  When a
background request has waited for ``WAIT_NS`` and no other one holds a sequence, it takes the next
that is free, ahead of waiting interactive ones, and nobody takes it back for ``KEEP_NS``: one
sequence of ``--parallel`` for a sixth of the time, at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from umaserve.wire.states import RUNNING, WAITING

if TYPE_CHECKING:
    from umaserve.wire.table import SessionTable

WAIT_NS = 5_000_000_000
KEEP_NS = 1_000_000_000


class Ageing:
    """Who waits since when, and who has a place by age.  Times are monotonic nanoseconds."""

    def __init__(self, n_slots: int) -> None:
        self._parked_ns = np.zeros(n_slots, np.int64)
        self._slot = -1
        self._serial = -1
        self._until_ns = 0

    def parked(self, slot: int, now_ns: int) -> None:
        """A session lost its place: its waiting begins again."""
        self._parked_ns[slot] = now_ns

    def due(self, table: SessionTable, now_ns: int) -> int:
        """Slot of the background request that goes before everybody now, or -1."""
        oldest, since = -1, now_ns - WAIT_NS
        for slot, state in enumerate(table.state.tolist()):
            if not table.lane[slot]:
                continue
            if state == RUNNING:
                return -1
            if state == WAITING:
                waits = max(int(table.t_submit_ns[slot]), int(self._parked_ns[slot]))
                if waits <= since:
                    oldest, since = slot, waits
        return oldest

    def admitted(self, table: SessionTable, slot: int, now_ns: int) -> None:
        """What `due` named got its place."""
        self._slot, self._serial = slot, int(table.serial[slot])
        self._until_ns = now_ns + KEEP_NS

    def keeps(self, table: SessionTable, now_ns: int) -> int:
        """Slot of the session that may not be parked for an interactive one now, or -1."""
        holds = now_ns < self._until_ns and table.serial[self._slot] == self._serial
        return self._slot if holds else -1
