"""Ageing at the door to the KV cache: background gets a place although interactive requests wait.

Without it, more interactive sessions than sequences would keep background out for ever.  A
background request goes first when it has aged (`umaserve.wire.states`) and no other background
request holds a sequence.  It takes the next free sequence, ahead of waiting interactive requests.
Nobody takes it back for ``KEEP_NS``.  That is one sequence of ``--parallel`` for a sixth of the
time, at most.
"""

from __future__ import annotations

from umaserve.wire.states import RUNNING, WAITING, has_aged
from umaserve.wire.table import SessionTable

KEEP_NS = 1_000_000_000


def due(table: SessionTable, now_ns: int) -> int:
    """Slot of the background request that goes before everybody now, or -1."""
    oldest, since = -1, now_ns
    for slot, state in enumerate(table.state.tolist()):
        if not table.lane[slot]:
            continue
        if state == RUNNING:
            return -1
        if state == WAITING and table.seq[slot] < 0:
            waits = int(table.t_wait_ns[slot])
            if waits <= since and has_aged(waits, now_ns):
                oldest, since = slot, waits
    return oldest


class Ageing:
    """Slot that has its place by age, and the time until which it keeps it (monotonic ns)."""

    def __init__(self) -> None:
        self._slot = -1
        self._serial = -1
        self._until_ns = 0

    def admitted(self, table: SessionTable, slot: int, now_ns: int) -> None:
        """Note that ``slot``, which was `due`, got its place, which it keeps for `KEEP_NS`."""
        self._slot, self._serial = slot, int(table.serial[slot])
        self._until_ns = now_ns + KEEP_NS

    def keeps(self, table: SessionTable, now_ns: int) -> int:
        """Slot of the session that may not be parked for an interactive one now, or -1."""
        holds = now_ns < self._until_ns and table.serial[self._slot] == self._serial
        return self._slot if holds else -1
