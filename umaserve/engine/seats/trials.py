"""Logits that are no numbers: whose fault it is, and that nobody else comes to harm.

A NaN in the keys or values of one sequence reaches others.  Attention multiplies what it masks by
0, and 0 x NaN is NaN.  How much is read beyond a sequence's own cells depends on the layout, and a
cell that was freed keeps what it held.  A recurrent state is emptied by a multiplication with 0.
So where a row's logits are no numbers, any sequence may have done it, and any may have suffered:

1. Every running row loses its cells, and the memory is zeroed, the worker's too.
2. Those rows are suspects.  Each is computed again from its tokens, with nobody else in the memory,
   until it gets a token: then it waits like a parked one.  Rows without numbers go first, of
   these the newest.
3. A suspect that has no numbers even so ends with ``E_RUNTIME_001``.  The memory is zeroed again,
   and everybody goes on, the other suspects too: a second culprit is found in the same way.

Where a trial finds nobody, what did it is gone (a request that was cancelled, say), or it takes
several rows together.  A row that comes without numbers out of such trials again and again ends
too, so that nobody is held up for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from umaserve.engine.model.loaded import Setup
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.wire import table as t

from .apart import Apart
from .full_rows import FullRows
from .seating import Seating
from .seats import Seats

MOST_TRIALS = 3  # without a culprit, that a row may bring about
WHY = (
    "the model's logits for it are not numbers; a token of it meets a weight that is damaged, "
    "or values overflow (check the model file, or another --type-k and --type-v)"
)


class Trials:
    """The suspects of one engine; for the loop's thread, between ticks only, `accuse` apart."""

    def __init__(
        self, setup: Setup, seats: Seats, seating: Seating, full: FullRows, apart: Apart,
        beside: PrefillWorker,
    ) -> None:  # fmt: skip
        self._table, self._control, self._context = setup.table, setup.control, setup.loaded.context
        self._seats, self._seating, self._full = seats, seating, full
        self._apart, self._beside = apart, beside
        self._accused: list[int] = []  # slots whose logits were no numbers, not dealt with yet
        self._suspects: list[tuple[int, int]] = []  # slot and serial, in the order of their trials
        self._on_trial = -1  # the slot that has the memory to itself
        self._tokens = 0  # that it had before
        self._isolated = 0  # what it was marked as before
        self._fruitless: dict[int, int] = {}  # by serial: trials that it has brought about
        self._brought: list[int] = []  # serials that have brought this one about

    @property
    def wanted(self) -> bool:
        """Whether `go_on` has something to do."""
        return bool(self._accused or self._suspects)

    def accuse(self, slots: Iterable[int]) -> None:
        """The logits of these rows were no numbers."""
        self._accused += slots

    def go_on(self) -> bool:
        """Deal with what was found, and let the next suspect have the memory.

        False where nobody is under suspicion, so that rows may be admitted as usual.
        """
        if self._accused:
            self._judge()
        table = self._table
        while self._suspects:
            slot, serial = self._suspects[0]
            state = int(table.state[slot]) if table.serial[slot] == serial else t.FREE
            if slot != self._on_trial and state == t.WAITING:
                self._on_trial, self._tokens = slot, int(table.n_tokens[slot])
                self._isolated, table.isolate[slot] = int(table.isolate[slot]), 1
                self._seating.place(slot)
                return True
            if state == t.RUNNING:
                if table.n_tokens[slot] == self._tokens:
                    return True
                table.isolate[slot] = self._isolated
                self._seats.park(slot)
            self._on_trial = -1
            del self._suspects[0]
            if not self._suspects:
                self._found_nobody()
        return False

    def _judge(self) -> None:
        table = self._table
        accused = [slot for slot in self._accused if table.state[slot] == t.RUNNING]
        self._accused = []
        brought = {slot: self._fruitless.get(int(table.serial[slot]), 0) for slot in accused}
        guilty = [s for s in accused if s == self._on_trial or brought[s] >= MOST_TRIALS]
        if guilty:
            self._seats.fail(guilty, "E_RUNTIME_001", WHY)
        running = np.flatnonzero(table.state == t.RUNNING).tolist()
        self._empty_memory(running)
        self._control.wake()
        if self._on_trial in guilty:
            self._suspects = []
        elif accused:
            running.sort(key=lambda slot: (slot not in accused, -int(table.arrival[slot])))
            self._suspects = [(slot, int(table.serial[slot])) for slot in running]
            self._brought = [int(table.serial[slot]) for slot in accused if slot in running]
        self._on_trial = -1

    def _empty_memory(self, running: list[int]) -> None:
        """Leave nothing in any memory; rows that run are computed again."""
        self.park_all(running)
        self._context.clear(data=True)
        self._seats.sequences.clear()
        self._apart.kept.close()
        self._beside.clear()

    def park_all(self, running: list[int]) -> None:
        """Leave nothing in any memory of rows that run or were parked: all is computed again."""
        for slot in self._seats.prefixes.clear():
            self._seats.drop_sequence(slot)
        self._full.let_all_go()
        for slot in running:
            self._seats.park(slot, keep=False)

    def _found_nobody(self) -> None:
        live = set(self._table.serial.tolist())
        for serial in self._brought:
            self._fruitless[serial] = self._fruitless.get(serial, 0) + 1
        self._fruitless = {s: n for s, n in self._fruitless.items() if s in live}
