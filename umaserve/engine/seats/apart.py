"""The context of rows whose numbers may not depend on other requests.

The numbers that libllama computes for a token depend on the shape of its batch.  They depend too on
the places of its sequence's cells among the cells of others.  So a deterministic request is alone
in its ticks, which have one shape (`umaserve.engine.native.batch.keep_shapes`), and in a context
that holds nothing else.  A single row at a time has the context, and other rows wait for it.
"""

from __future__ import annotations

import numpy as np

from umaserve.engine.aside.context import AsideContext
from umaserve.engine.aside.kept_context import KeptContext
from umaserve.engine.model.loaded import Setup, usable_cores
from umaserve.engine.ticks.records import Flight
from umaserve.wire import table as t

from .seats import Seats
from .turns import AdapterTurns


class Apart:
    """For the loop's thread.  The context is made at first use, and freed when it is unused."""

    def __init__(self, setup: Setup, seats: Seats, turns: AdapterTurns, flight: Flight) -> None:
        self._setup, self._seats, self._turns, self._flight = setup, seats, turns, flight
        # those of the ticks may change once, and sums are made by thread
        self.kept = KeptContext(setup, threads=setup.start.n_threads or usable_cores())

    def later(self) -> set[int]:
        """Return the waiting rows that cannot run yet: all, or all but the next one.

        Have a context made for the next one; end it where there is no memory for that.
        """
        table = self._setup.table
        rows = np.flatnonzero(table.isolate == t.APART).tolist()
        waiting = [slot for slot in rows if table.state[slot] == t.WAITING and table.seq[slot] < 0]
        if not waiting or t.RUNNING in table.state[rows].tolist():
            return set(waiting)
        first = min(waiting, key=lambda slot: (table.lane[slot], table.arrival[slot]))
        if self._is_ready(first):
            waiting.remove(first)
        return set(waiting)

    def begin(self, slot: int) -> None:
        """A row begins: the context holds nothing, and computes with the row's adapters."""
        assert self.kept.context is not None
        context = self.kept.context.context
        context.clear()
        self._setup.loaded.adapters.set(context, self._turns.scales(slot))
        self._flight.apart = context.address

    def cut(self, n_kept: int) -> int:
        """Forget all but the first tokens of the row; return how many are kept."""
        assert self.kept.context is not None
        return n_kept if self.kept.context.context.cut(0, n_kept) else 0

    def _is_ready(self, slot: int) -> bool:
        """Return whether the context has room for a row; else one is made."""
        table, loaded = self._setup.table, self._setup.loaded
        need = min(int(table.n_prompt[slot] + table.max_tokens[slot]), loaded.n_positions)
        context = self.kept.ready(need)
        if isinstance(context, str):
            self._seats.fail([slot], "E_LIMIT_003", context)
        return isinstance(context, AsideContext)
