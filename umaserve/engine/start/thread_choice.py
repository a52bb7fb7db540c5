"""How many CPU threads the ticks get: all physical cores, or one fewer.

Threads wait for each other at every layer.  So on a machine where others need a core, one thread
that is held up holds up all.  Turns are taken, and the mean counts, since what hurts is the rare
long wait.  Fewer threads have to be a tenth faster, and no slower most of the time: a single long
wait of the few turns says little.  `loop.idle_work` asks twice, at different times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator

from .bare_ticks import BareTicks

MEASURE_S = 0.5  # time that a choice may take, two turns at least
ROUNDS = 12
BATCH_PROMPT = 12  # tokens of a tick that stands for those of more than one

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
