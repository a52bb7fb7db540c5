"""The context of rows whose numbers may not depend on other requests.

The numbers that libllama computes for a token depend on the shape of its batch.  They depend too on
the places of its sequence's cells among the cells of others.  So a deterministic request is alone
in its ticks, which have one shape (`umaserve.engine.native.batch.keep_shapes`), and in a context
that holds nothing else.  A single row at a time has the context, and other rows wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np

from umaserve.engine.aside.context import AsideContext, why_no_room
from umaserve.engine.aside.lane import KEEP_S
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.model.setup import Setup
from umaserve.engine.ticks.records import Flight
from umaserve.llama.errors import LlamaError
from umaserve.wire import table as t

from .seats import Seats
from .turns import AdapterTurns


class Apart:
    """For the loop's thread.  The context is made at first use, and freed when it is unused."""

    def __init__(self, setup: Setup, seats: Seats, turns: AdapterTurns, flight: Flight) -> None:
        self._setup, self._seats, self._turns, self._flight = setup, seats, turns, flight
        self._context: AsideContext | None = None
        self._opened: deque[AsideContext | str] = deque()
        self._used_s = 0.0
        self.is_opening = False

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
        assert self._context is not None
        context = self._context.context
        context.clear()
        self._setup.loaded.adapters.set(context, self._turns.scales(slot))
        self._flight.apart = context.address

    def cut(self, n_kept: int) -> int:
        """Forget all but the first tokens of the row; return how many are kept."""
        assert self._context is not None
        return n_kept if self._context.context.cut(0, n_kept) else 0

    def idle_ms(self) -> int | None:
        """Ms until `free_unused` has something to do, while no row runs; None = for ever."""
        if self._context is None:
            return None
        return max(int(1000 * (self._used_s + KEEP_S - time.monotonic())), 0) + 1

    def free_unused(self) -> None:
        """Free the context if no row needed it for a while; no row runs."""
        if time.monotonic() > self._used_s + KEEP_S:
            self.close()

    def close(self) -> None:
        """Free the context; no row has it."""
        self._flight.apart = 0
        if self._context is not None:
            self._context.close()
            self._context = None

    def _is_ready(self, slot: int) -> bool:
        """Return whether the context has room for a row; else one is made."""
        table, loaded = self._setup.table, self._setup.loaded
        need = min(int(table.n_prompt[slot] + table.max_tokens[slot]), loaded.n_positions)
        self._used_s = time.monotonic()
        if self._opened:
            self.is_opening = False
            opened = self._opened.popleft()
            if isinstance(opened, str):
                self._seats.fail([slot], "E_LIMIT_003", opened, empty=True)
                return False
            self._context = opened
        if self._context is not None and self._context.cells >= need:
            return True
        if not self.is_opening:
            self.close()
            why = why_no_room(loaded, need)
            if why:
                self._seats.fail([slot], "E_LIMIT_003", why, empty=True)
                return False
            self.is_opening = True
            threading.Thread(target=self._open, args=(need,), daemon=True).start()
        return False

    def _open(self, tokens: int) -> None:
        """In a thread of its own: no tick waits for it."""
        setup = self._setup
        try:
            context = AsideContext(setup.loaded, setup.start, tokens, {}, setup.table.abort)
            # those of the ticks may change once, and sums are made by thread
            threads = setup.start.n_threads or usable_cores()
            context.context.set_threads(threads, threads)
            self._opened.append(context)
        except LlamaError as error:
            self._opened.append(str(error))
        setup.control.notify()
