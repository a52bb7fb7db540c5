"""When a model that cannot be served now is tried again: for ever, after pauses that grow."""

from __future__ import annotations

import time
from typing import Any

RETRY_S = 0.1  # before the second attempt; then four times as long each
LONGEST_S = 30.0


def pause_s(deaths: float) -> float:
    """Before the next attempt, after so many that failed in a row."""
    return float(min(RETRY_S * 4 ** min(int(deaths), 10), LONGEST_S))


class NextTry:
    """A model that was served, cannot be served now, and is tried again at a time."""

    def __init__(self, model: str, reason: str, attempts: float) -> None:
        self.model, self.reason = model, reason
        wait_s = pause_s(attempts)
        self._due_s = time.monotonic() + wait_s
        self._clock = time.strftime("%H:%M:%S", time.localtime(time.time() + wait_s))

    @property
    def in_s(self) -> float:
        return max(0.0, self._due_s - time.monotonic())

    def text(self) -> str:
        """For whoever asks meanwhile."""
        return (
            f"no model is loaded: {self.model} cannot be served: {self.reason}; "
            f"it is tried again at {self._clock}"
        )

    def state(self) -> dict[str, Any]:
        """For ``info`` and the dashboard."""
        return {"model": self.model, "reason": self.reason, "in_s": round(self.in_s, 1)}
