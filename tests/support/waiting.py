"""Wait until something is true, and fail where it never is."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE, LONGEST_S = 0.02, 0.005  # of the time waited so far, and the longest pause


def until(true: Callable[[], object], timeout: float = 60.0, every: float = 0.0005) -> None:
    """Return once ``true()`` is; ``timeout`` and ``every`` (how often it is asked) are seconds.

    It is asked less often the longer it takes: the processors are for what is awaited.
    """
    began = time.monotonic()
    while not true():
        waited = time.monotonic() - began
        assert waited < timeout, "it never happened"
        time.sleep(max(every, min(SHARE * waited, LONGEST_S)))
