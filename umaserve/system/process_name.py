"""The name under which `ps` and `top` show a process."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_NAME = 15  # <linux/prctl.h>


def name_process(name: str) -> None:
    """Set the name, of 15 bytes at most.  Linux alone has a call for it.

    To be called by the main thread, whose name is that of the process.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
