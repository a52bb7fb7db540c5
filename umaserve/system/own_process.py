"""This process: its name, its core files, its parent, and signals that its children leave to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # that the front handles

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show, of 15 bytes at most.  Linux alone has a call for it.

    To be called by the main thread, whose name is that of the process.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def forbid_core_dumps() -> None:
    """Keep what this process holds in memory, such as everybody's prompts, out of core files.

    ``RLIMIT_CORE`` keeps the system from writing a file; it counts for the processes that are
    started later, too.  On Linux a program such as systemd-coredump may take the core; then
    ``PR_SET_DUMPABLE`` is asked, which each process has to set for itself.  From then on no
    debugger of the same user can attach.  Files in ``/proc/PID`` that only their owner may open are
    root's: the process itself cannot open them any more either.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@contextlib.contextmanager
def signals_left_to_front() -> Iterator[None]:
    """Start children that `SIGNALS` do not reach: they stay blocked there from the first moment.

    A closed terminal, Ctrl-C and service managers signal all processes.  The front then lets its
    children finish what they do.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(parent_pid: int) -> None:
    """Make sure this process does not outlive the front, whatever it hangs in.

    As a rule, a child leaves at the end of file on the control socket.  This is for a child that
    cannot read the socket yet, or any more, because it is stuck in a driver or stopped.  Linux
    kills it (``PR_SET_PDEATHSIG``); elsewhere a thread watches the parent's pid.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:

        def watch() -> None:
            while os.getppid() == parent_pid:
                time.sleep(1.0)
            os._exit(1)

        threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before we could ask
