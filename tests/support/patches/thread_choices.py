"""An engine that finds out what it is told about threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.patches.engine import once_numba_may_load, say


@once_numba_may_load
def told(fewer: list[int], path: str, doubt_s: float) -> None:
    """One thread less than all is fastest in a look that ``fewer`` names.

    There is a choice for one token and a choice for more in a look, and no wait between two looks,
    but ``doubt_s`` once fewer have been taken.
    A line is written to the file at ``path`` for each choice.
    """
    from umaserve.engine.start import thread_choice

    made = 0

    def choose(ticks: Any, most: int, rows: int, prompt: int) -> Iterator[None]:
        nonlocal made
        yield
        look, made = made // 2, made + 1
        with open(path, "a") as file:
            print(look, file=file)
        return most - (look in fewer)

    thread_choice.choose = choose  # type: ignore[assignment]
    thread_choice.AGAIN_S, thread_choice.DOUBT_S = 0.0, doubt_s


@once_numba_may_load
def told_beside_a_draft_model(path: str) -> None:
    """One thread less than all is fastest for one token, and all are for more.

    After each look the file at ``path`` gets the threads that libllama has for the draft model.
    """
    from umaserve.engine.start import thread_choice

    look = thread_choice.ThreadLooks.look

    def choose(ticks: Any, most: int, rows: int, prompt: int) -> Iterator[None]:
        yield
        return most - rows

    def spied(self: Any) -> Iterator[None]:
        yield from look(self)
        context = self._setup.loaded.draft.context
        lib = context.library.lib
        say(path, *(n(context.pointer) for n in (lib.llama_n_threads, lib.llama_n_threads_batch)))

    thread_choice.choose = choose  # type: ignore[assignment]
    thread_choice.AGAIN_S = 0.0
    thread_choice.ThreadLooks.look = spied  # type: ignore[method-assign]


@once_numba_may_load
def measured_beside_another_program(path: str) -> None:
    """Ticks take eight times as long until costs have been measured once.

    The file at ``path`` gets the costs of a lone token after each time that costs were measured, as
    they were before and as they are.
    """
    from umaserve.engine.start.bare_ticks import BareTicks
    from umaserve.engine.start.measures import Measures

    probe, measure, times = Measures.costs, BareTicks.measure, 0

    def slow(self: Any, rows: int, prompt: int) -> float:
        return measure(self, rows, prompt) * (1.0 if times else 8.0)

    def spied(self: Any) -> Iterator[None]:
        nonlocal times
        before = float(self._cost.mean[0, 1, 0])
        yield from probe(self)
        times += 1
        say(path, before, float(self._cost.mean[0, 1, 0]))

    BareTicks.measure = slow  # type: ignore[method-assign]
    Measures.costs = spied  # type: ignore[method-assign]
