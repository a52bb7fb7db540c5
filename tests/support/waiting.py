"""Wait until something is true, and fail where it never is."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], timeout: float = 60.0, every: float = 0.0005) -> None:
    """Return once ``true()`` is; ``timeout`` and ``every`` (how often it is asked) are seconds."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(every)
