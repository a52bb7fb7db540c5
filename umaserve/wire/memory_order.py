"""The order in which stores become visible to other threads and processes, for code in Python.

Front and engine, and the engine's threads, tell each other things through arrays: first the value,
then the word that says the value is there.  A processor with weak ordering (AArch64) may let
another core see them the other way round.  So the writer needs a fence between the two stores, and
the reader a fence between the two loads.  Compiled code has ``umaserve.engine.native.calls`` for
it.
"""

from __future__ import annotations

import platform
import threading

_lock = threading.Lock()


def all_first() -> None:
    """Order all loads and stores before this call before all loads and stores after it.

    Releasing a lock keeps earlier accesses in front of the release.  Taking a lock keeps later
    accesses behind it.  The two are never reordered (Arm's ``STLR`` and ``LDAR``, a ``LOCK`` on
    x86).
    """
    with _lock:
        pass
    with _lock:
        pass


def _nothing() -> None:
    """Loads stay in order, and so do stores, on a processor with total store order (x86)."""


_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")

stores_first = _nothing if _IN_ORDER else all_first
"""What was stored before is seen before what is stored after: call it before a word of news."""

loads_first = _nothing if _IN_ORDER else all_first
"""What was loaded before was loaded before what comes after: call it after a word of news."""
