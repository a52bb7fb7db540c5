"""A clock that shows recorded durations."""

from __future__ import annotations


class Playback:
    """Stands in for ``time.perf_counter``: every `step` takes the next recorded duration."""

    __name__ = "playback"

    def __init__(self) -> None:
        self._now = 0.0
        self._left: list[float] = []

    def __call__(self) -> float:
        return self._now

    def load(self, seconds: list[float]) -> None:
        """Durations of the steps to come."""
        self._left = list(seconds)

    def step(self) -> None:
        """Let one recorded duration pass."""
        self._now += self._left.pop(0)


CLOCK = Playback()
