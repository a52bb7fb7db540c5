"""Memory that the C library keeps."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Have the C library return what it keeps free (malloc_trim(3), where there is one)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
