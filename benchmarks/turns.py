"""Sides that take turns, so that a machine that speeds up or slows down does so for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


def take_turns(
    sides: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call every side once a round (A B A B …); what each returned, in order, warm-up left out."""
    out: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-warm_up, rounds):
        for name, side in sides.items():
            value = side()
            if turn >= 0:
                out[name].append(value)
    return out


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)
