"""Keeps what a process holds in memory, such as everybody's prompts, out of core files.

Two things are needed.  ``RLIMIT_CORE`` keeps the system from writing a file; it counts for the
processes that are started later, too.  On Linux a program such as systemd-coredump may take the
core.  Then ``PR_SET_DUMPABLE`` is asked instead of the limit.  Each process has to set it for
itself.
"""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>


def forbid() -> None:
    """From now on no core is written of this process.

    On Linux no debugger of the same user can attach from then on.  Files in ``/proc/PID`` that only
    their owner may open are root's: the process itself cannot open them any more either.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
