"""When bytes came that this process reads now, though it had to wait for a core before it could.

The front sleeps until bytes come, or is sending while they do; with every core busy it then waits
in the system's run queue, and its clock would start when that is over.  Linux counts this wait for
every thread, in ``/proc/thread-self/schedstat``.  Elsewhere bytes count as of when they are read.
"""

from __future__ import annotations

import contextlib
import os
import time

import trio

SCHEDSTAT = "/proc/thread-self/schedstat"

Moment = tuple[bytes, int]  # what ``SCHEDSTAT`` held, and time.monotonic_ns() right after


class ArrivalClock(trio.abc.Instrument):
    """Follows the loop's waits for events; costs them two short reads of ``/proc`` each.

    Bytes came after the last moment at which their socket was known to be empty.  Of the time from
    there until the loop had the news of them, what this thread spent in the run queue counts as
    theirs.  That is exact when the wait for a core began with them: when they woke the front, or
    when their sender ran in its place.  Bytes that came in the middle of such a wait are dated back
    by the part of it before them, but never to before that moment.
    """

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._path = path
        self._fd = -1
        # ends of the last wait for events but one, start and end of the last one
        self._past = self._before = self._after = (b"", 0)

    @property
    def running(self) -> bool:
        return self._fd >= 0

    def start(self) -> None:
        """To be called in the thread and the run whose waits count; again is harmless.  Does
        nothing where the system keeps no such account."""
        if self.running:
            return
        try:
            # open for as long as the process lives
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        trio.lowlevel.add_instrument(self)
        self._past = self._before = self._after = self.now()
        if _parsed(self._after) is None:
            self.stop()

    def stop(self) -> None:
        """From now on bytes come when they are read."""
        if self.running:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(KeyError):  # trio has dropped it
                trio.lowlevel.remove_instrument(self)

    def now(self) -> Moment:
        """For ``arrived_ns``; to be taken after the look that found a socket empty."""
        try:
            return os.pread(self._fd, 64, 0), time.monotonic_ns()
        except Exception:  # an instrument that raises is dropped: nobody would know when bytes came
            return b"", time.monotonic_ns()

    def before_io_wait(self, timeout: float) -> None:
        self._before = self.now()

    def after_io_wait(self, timeout: float) -> None:
        self._past, self._after = self._after, self.now()

    def arrived_ns(self, empty: Moment | None = None) -> int:
        """When the bytes came that the last wait for events reported, on ``time.monotonic_ns()``.

        ``empty``: the last moment at which their socket was seen to be empty, where that is known.
        """
        if not self.running:
            return time.monotonic_ns()
        counts = [_parsed(moment) for moment in (self._past, self._before, self._after)]
        known = _parsed(empty) if empty is not None else None
        past, before, after = counts
        if past is None or before is None or after is None:
            self.stop()
            return time.monotonic_ns()
        # when it slept there was nothing to read before; else it had come while the front was busy
        slept = before[1] != after[1]
        since, since_ns = (before[0], self._before[1]) if slept else (past[0], self._past[1])
        if empty is not None and known is not None and empty[1] > since_ns:
            since, since_ns = known[0], empty[1]
        return max(self._after[1] - max(0, after[0] - since), since_ns)


def _parsed(moment: Moment) -> tuple[int, int] | None:
    """Nanoseconds spent waiting for a core, and how often one was given; ``None``: no such text."""
    try:
        _, waited, runs = map(int, moment[0].split())
    except ValueError:
        return None
    return waited, runs
