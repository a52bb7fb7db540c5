"""A child of the front ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time


def die_with_parent(parent_pid: int) -> None:
    """Make sure this process does not outlive the front, whatever it hangs in.

    As a rule, a child leaves at the end of file on the control socket.  This is for a child that
    cannot read the socket yet, or any more, because it is stuck in a driver or stopped.  Linux
    kills it (``PR_SET_PDEATHSIG``); elsewhere a thread watches the parent's pid.  Also leaves
    Ctrl-C, which reaches the whole group, to the front.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
