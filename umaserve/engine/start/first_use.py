"""Ticks of every size once, before a request needs them: on an accelerator the first one is slow.

A driver loads, or compiles, a kernel when it is first wanted.  The numbers of tokens and of rows of
logits decide which kernel that is.  Buffers grow with the largest tick so far.  What ticks cost
may be known from an earlier start (`umaserve.engine.model.costs.cost_keeper`); kernels never are.
"""

from __future__ import annotations

from collections.abc import Iterator

from .bare_ticks import BareTicks
from .probe import LONGEST_MS

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64)
PROMPTS = (16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048)
TIMES = 2  # a graph is kept from its second use on, where the driver keeps graphs


def meet_shapes(
    ticks: BareTicks, n_rows: int, most: int, met: set[tuple[int, int]]
) -> Iterator[None]:
    """A tick a step: each of ``ROWS`` up to ``n_rows``, each of ``PROMPTS`` up to ``most`` tokens.

    What is in ``met`` is left out, and what has been computed is added to it, so that the steps may
    end early.  A prompt that should take more than LONGEST_MS is left out as well.
    """
    for rows in ROWS:
        if rows <= n_rows and (rows, 0) not in met:
            yield from _meet(ticks, rows, 0, [])
            met.add((rows, 0))
    token_ms = 0.0
    for prompt in PROMPTS:
        if prompt > most or token_ms * prompt > LONGEST_MS:
            return
        if (0, prompt) in met:
            continue
        taken: list[float] = []
        yield from _meet(ticks, 0, prompt, taken)
        met.add((0, prompt))
        token_ms = min(taken, default=0.0) / prompt


def _meet(ticks: BareTicks, rows: int, prompt: int, taken: list[float]) -> Iterator[None]:
    for _ in range(TIMES):
        taken.append(ticks.measure(rows, prompt))
        yield
