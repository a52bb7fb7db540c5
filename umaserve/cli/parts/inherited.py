"""State that a process inherits from its parent, and must not take for granted.

A shell, `nohup`, a service manager or another program may leave signals blocked or ignored and
descriptors closed.  Signals ignored on purpose (SIGINT, SIGHUP, ...) stay ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def settle() -> None:
    """Make the standard streams, the signal mask and SIGCHLD what the commands count on."""
    _open_standard_streams()
    # blocked, they would wait for ever; nobody blocks them for a child on purpose
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ENDING, signal.SIGCHLD})
    with contextlib.suppress(ValueError):  # not the main thread: this is no process of our own
        # ignored, the exit status of a child is lost, and a crash looks like an orderly end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ignored() -> list[str]:
    """Names of the signals that end a process and are ignored here."""
    return [number.name for number in ENDING if signal.getsignal(number) == signal.SIG_IGN]


def _open_standard_streams() -> None:
    """Let no file or socket that is opened later become descriptor 0, 1 or 2.

    Output that was closed is opened for reading, so that writing fails as it should; errors may be
    written, as there is nobody to tell.
    """
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
            os.set_inheritable(fd, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
