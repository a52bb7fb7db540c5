"""A child of the front ends with it, and leaves the front's signals to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # that the front handles


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
        pr_set_pdeathsig = 1
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    else:

        def watch() -> None:
            while os.getppid() == parent_pid:
                time.sleep(1.0)
            os._exit(1)

        threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before we could ask
