"""An engine that finds out what it is told about threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.patches.engine import once_numba_may_load


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
