"""Socket that a service manager hands over at the daemon's start, and messages to the manager.

systemd listens at the socket before the daemon runs, and hands the socket over as descriptor 3.
Clients that connect while the daemon starts therefore wait in line instead of being refused.  The
protocols are ``sd_listen_fds(3)`` and ``sd_notify(3)``.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from dataclasses import dataclass

_FIRST_FD = 3
_HANDED = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_NOTIFY = "NOTIFY_SOCKET"
_WAYS_OUT = "`umaserve service install` writes units that fit"
_CHANGE = f"Change the socket unit; {_WAYS_OUT}"
_NO_SOCKET = (
    "the service manager handed over something else than a listening Unix socket with a path"
)


class HandedOverWrongly(Exception):
    """Failure to serve a descriptor that was handed over; the message says why and what to do."""


@dataclass(frozen=True)
class Manager:
    """``socket`` is the listening Unix socket, if any, ``path`` where it lies.  Its file is the
    manager's to remove.  ``_notify`` is where the manager listens, empty where nobody does."""

    socket: socket.socket | None = None
    path: str = ""
    _notify: str = ""

    def tell(self, state: str) -> None:
        """Say ``READY=1`` or ``STOPPING=1``.  A manager that is not there is no fault of ours."""
        if self._notify:
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
            ):
                sock.connect(re.sub("^@", "\0", self._notify))  # one without a file
                sock.send(state.encode())


def manager() -> Manager:
    """The service manager that started this process, from the environment.

    The variables go, so that no child takes them for its own.  Raises `HandedOverWrongly`.
    """
    pid, count, _ = (os.environ.pop(name, "") for name in _HANDED)
    notify = os.environ.pop(_NOTIFY, "")
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return Manager(_notify=notify)
    if int(count) > 1:
        raise HandedOverWrongly(
            f"the service manager handed over {count} sockets, and the daemon takes one Unix "
            f"socket. Name one ListenStream= in the socket unit; {_WAYS_OUT}"
        )
    try:
        sock = socket.socket(fileno=_FIRST_FD)
        sock.set_inheritable(False)
    except OSError as error:
        raise HandedOverWrongly(f"{_NO_SOCKET} ({error.strerror}). {_CHANGE}") from None
    return Manager(sock, _path_of(sock), notify)


def _path_of(sock: socket.socket) -> str:
    """Where the socket lies.  Raises `HandedOverWrongly` unless it is one as the daemon makes."""
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    name = sock.getsockname() if is_listening else ""
    if sock.family != socket.AF_UNIX or not isinstance(name, str) or not name:
        raise HandedOverWrongly(f"{_NO_SOCKET}. {_CHANGE}")
    try:
        mode = os.lstat(name).st_mode
    except OSError as error:
        raise HandedOverWrongly(
            f"the service manager's socket {name} is not there ({error.strerror}). "
            "Restart the socket unit"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise HandedOverWrongly(
            f"the service manager's socket {name} is open to other users (mode "
            f"{stat.S_IMODE(mode):04o}). Set SocketMode=0600 in the socket unit; {_WAYS_OUT}"
        )
    return name
