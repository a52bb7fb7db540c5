"""How many CPU threads the ticks get: all physical cores, or one fewer.

Threads wait for each other at every layer.  So on a machine where others need a core, one thread
that is held up holds up all.  Turns are taken, and the mean counts, since what hurts is the rare
long wait.  Fewer threads have to be a tenth faster, and no slower most of the time: a single long
wait of the few turns says little.  `ThreadLooks` asks twice, at different times.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator

from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.thread_places import leave_places, place_threads
from umaserve.wire import messages as m

from .bare_ticks import BareTicks

MEASURE_S = 0.5  # time that a choice may take, two turns at least
ROUNDS = 12
BATCH_PROMPT = 12  # tokens of a tick that stands for those of more than one
AGAIN_S = 10.0  # after which threads are looked at again where a look has found fewer
# the same where fewer have been taken: what took the cores may have ended.  Each look doubles it
DOUBT_S = 30.0

Choice = Generator[None, None, int]


def choose(ticks: BareTicks, most: int, rows: int, prompt: int) -> Choice:
    """``most`` threads or one fewer, for ticks of so many rows and prompt tokens; a tick a step."""
    spent: dict[int, list[float]] = {most: [], most - 1: []}
    began = time.monotonic()
    for turn in range(ROUNDS):
        for threads, times in spent.items():
            ticks.threads(threads, threads)
            ticks.measure(rows, prompt)  # wakes the threads
            yield
            ms = ticks.measure(rows, prompt)
            yield
            if not ms:
                return most
            times.append(ms)
        if turn >= 1 and time.monotonic() - began > MEASURE_S:
            break
    return most - 1 if fewer_pay(spent[most - 1], spent[most]) else most


def fewer_pay(fewer: list[float], all_cores: list[float]) -> bool:
    """Whether fewer threads are faster, by times of as many turns each."""
    usually = statistics.median(fewer) < statistics.median(all_cores)
    return usually and sum(fewer) < 0.9 * sum(all_cores)


class ThreadLooks:
    """Looks for the numbers of CPU threads that are fastest, for one token and for more.

    A start is often a busy moment, say while others start too.  So fewer than all are taken if they
    are faster another time as well.  One look in a pause `DOUBT_S` later, and then ever more
    rarely, is enough to have all of them again.  ``changed`` is called where other numbers are
    taken than before.
    """

    def __init__(self, setup: Setup, changed: Callable[[], None]) -> None:
        self._setup, self._changed = setup, changed
        self._most = setup.loaded.n_threads
        self._found: tuple[int, int] | None = None  # threads that the last look has found
        self.again_s, self._doubt_s = math.inf, DOUBT_S  # when these are looked at again

    def look(self) -> Iterator[None]:
        """Choose; a tick a step, while no row runs."""
        start, loaded, most = self._setup.start, self._setup.loaded, self._most
        if start.n_threads or not loaded.on_processor or most < 2:
            return
        ticks = BareTicks(loaded, self._setup.table.abort)
        try:
            one = yield from choose(ticks, most, rows=1, prompt=0)
            prompt = min(BATCH_PROMPT, loaded.n_batch, loaded.n_positions)
            more = yield from choose(ticks, most, rows=0, prompt=prompt)
        finally:
            ticks.close()
        former, self._found = self._found or (most, most), (one, more)
        now_s = time.monotonic()
        if min(one, more) < most:
            self.again_s = now_s + AGAIN_S
        one, more = max(one, former[0]), max(more, former[1])
        if min(one, more) < most:
            self.again_s, self._doubt_s = now_s + self._doubt_s, 2.0 * self._doubt_s
        if (one, more) != (loaded.n_threads, loaded.n_threads_batch):
            self._take(one, more)

    def _take(self, one: int, more: int) -> None:
        loaded = self._setup.loaded
        loaded.n_threads, loaded.n_threads_batch = one, more
        loaded.context.set_threads(one, more)
        if loaded.draft is not None:
            loaded.draft.context.set_threads(one, more)
        leave_places(loaded.places)  # one thread alone needs none
        place_threads(loaded.places, max(one, more))
        self._changed()
        self._setup.control.send(m.Threads(one, more))
