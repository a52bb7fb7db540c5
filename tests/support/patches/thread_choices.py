"""An engine that finds out what it is told about threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.patches.engine import once_numba_may_load, say


@once_numba_may_load
def told(fewer: list[int], path: str) -> None:
    """One thread less than all is fastest in a look that ``fewer`` names.

    There is a choice for one token and a choice for more in a look, and no wait between two looks.
    A line is written to the file at ``path`` for each choice.
    """
    from umaserve.engine.loop import idle_work

    made = 0

    def choose(ticks: Any, most: int, rows: int, prompt: int) -> Iterator[None]:
        nonlocal made
        yield
        look, made = made // 2, made + 1
        with open(path, "a") as file:
            print(look, file=file)
        return most - (look in fewer)

    idle_work.choose = choose  # type: ignore[assignment]
    idle_work.AGAIN_S = 0.0


@once_numba_may_load
def told_beside_a_draft_model(path: str) -> None:
    """One thread less than all is fastest for one token, and all are for more.

    After each look the file at ``path`` gets the threads that libllama has for the draft model.
    """
    from umaserve.engine.loop import idle_work

    look = idle_work.IdleWork._threads

    def choose(ticks: Any, most: int, rows: int, prompt: int) -> Iterator[None]:
        yield
        return most - rows

    def spied(self: Any) -> Iterator[None]:
        yield from look(self)
        context = self._engine.loaded.draft.context
        lib = context.library.lib
        say(path, *(n(context.pointer) for n in (lib.llama_n_threads, lib.llama_n_threads_batch)))

    idle_work.choose = choose  # type: ignore[assignment]
    idle_work.AGAIN_S = 0.0
    idle_work.IdleWork._threads = spied  # type: ignore[method-assign]
