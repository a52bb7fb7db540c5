"""File descriptors that are kept free, so that being out of them ends nothing for good.

A process that has used up its descriptors can neither start an engine nor take a connection in
order to refuse it.  So some are kept, open and unused, and let go for the moment in which they
are needed.  Connections are taken only while all of them are there: what becomes free goes here
first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

ENGINE = 16  # what starting an engine takes at most
OTHERS = 320  # files, pipes, processes
LEAST = 64  # the daemon, its engine and a few connections
OPEN_MAX = 10240  # of macOS' <sys/syslimits.h>: setrlimit(2) may refuse more, "unlimited" or not
OUT_OF_THEM = (errno.EMFILE, errno.ENFILE)


class TooFewDescriptors(Exception):
    """The daemon cannot start; the message says why and what to do."""


def limit() -> int:
    """Descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _wanted(connections: int) -> int:
    """The limit that has room for so many connections beside all else."""
    return max(connections + ENGINE + OTHERS, (connections + ENGINE) * 3 // 2 + 1)


def raise_limit(connections: int) -> None:
    """Have room for so many connections, as far as the hard limit allows.  Never lowers it."""
    wanted = _wanted(connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for most in (wanted, OPEN_MAX):
        if soft < most <= wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                return


def why_too_few(connections: int) -> str:
    """Return which connections the limit does not allow, and what to do; empty if it allows all.

    Raises ``TooFewDescriptors`` where the limit does not allow even the daemon itself.
    """
    most, wanted = limit(), _wanted(connections)
    if most == resource.RLIM_INFINITY:
        return ""
    if most < LEAST:
        raise TooFewDescriptors(
            f"the daemon needs more file descriptors than `ulimit -n` allows: {most}, and "
            f"{LEAST} are the least; `ulimit -n {wanted}` in the shell that starts it raises it"
        )
    room = connections_within_limit()
    if room >= connections:
        return ""
    return (
        f"`ulimit -n` is {most}: at most {room} connections may be open at once, not the "
        f"{connections} of --max-connections; `ulimit -n {wanted}` before the start allows them"
    )


def connections_within_limit() -> int:
    """How many there can be beside all else that this process has to open."""
    most = limit()
    return 1 << 30 if most == resource.RLIM_INFINITY else most - most // 3 - ENGINE


class Reserve:
    """Descriptors that are kept free; none before `keep`."""

    def __init__(self) -> None:
        self._size = self._lent = 0
        self._fds: list[int] = []

    def keep(self, size: int = ENGINE) -> None:
        """Keep ``size`` descriptors from now on; fewer where the limit is very low."""
        most = limit()
        self._size = size if most == resource.RLIM_INFINITY else min(size, most // 3)
        self.fill()

    def fill(self) -> bool:
        """Take again what is missing; whether all are there, and none is lent."""
        if self._lent:
            return False
        try:
            while len(self._fds) < self._size:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def lent(self, most: int = ENGINE) -> Iterator[None]:
        """Let up to so many go while the context lasts; taken back after it as far as possible."""
        for _ in range(min(most, len(self._fds))):
            os.close(self._fds.pop())
        self._lent += 1
        try:
            yield
        finally:
            self._lent -= 1
            self.fill()


RESERVE = Reserve()  # of this process
