"""Where a daemon's socket is, and connecting to it: to a daemon of one's own, and to nobody else.

While no daemon runs, anybody may listen at a path in ``/tmp``.  So the system is asked whose the
socket is before the first byte is sent.
"""

from __future__ import annotations

import os
import socket
import stat
import time

from umaserve.client.events import ConnectionFailed, OtherUser
from umaserve.system.peer import is_own, peer_of, user_name

DEFAULT_SOCKET = "/tmp/uma.sock"
RUNTIME_NAME = "uma.sock"
CROWDED_S = 5.0  # for a place in the line of those that the daemon has not taken yet


def socket_path(path: str | None = None) -> str:
    """``path``, else ``UMA_SOCK``, else ``$XDG_RUNTIME_DIR/uma.sock`` if there is such a socket,
    else ``/tmp/uma.sock``."""
    named = path or os.environ.get("UMA_SOCK")
    if named:
        return os.path.expanduser(named)
    private = runtime_socket()
    return private if private and _is_socket(private) else DEFAULT_SOCKET


def runtime_socket() -> str:
    """``$XDG_RUNTIME_DIR/uma.sock``; empty where this user has no such folder."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return os.path.join(folder, RUNTIME_NAME) if os.path.isabs(folder) else ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def connect(path: str, timeout: float | None = None) -> socket.socket:
    """A blocking connection to the daemon at ``path``.  Raises ``ConnectionFailed``."""
    try:
        sock = connected(path, timeout)
    except OSError as error:
        raise unreachable(path, error) from None
    refuse_strangers(sock, path)
    return sock


def connected(path: str, timeout: float | None) -> socket.socket:
    """A blocking socket, connected to the daemon at ``path``.  Raises ``OSError``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    until_s = time.monotonic() + (CROWDED_S if timeout is None else min(timeout, CROWDED_S))
    try:
        sock.settimeout(timeout)
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:  # many wait to be taken
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.01)
    except OSError:
        sock.close()
        raise


def refuse_strangers(sock: socket.socket, path: str) -> None:
    """Close ``sock`` and raise ``OtherUser`` where another user listens at ``path``.

    To be called before anything is sent.
    """
    try:
        uid = peer_of(sock).uid
    except OSError as error:  # it has gone already
        sock.close()
        raise unreachable(path, error) from None
    if not is_own(uid):
        sock.close()
        raise OtherUser(
            f"{path} is a socket of {user_name(uid)}, not yours; nothing was sent. {_own_daemon()}"
        )


def _own_daemon() -> str:
    start, private = "Start a daemon of your own with `umaserve --socket", runtime_socket()
    if private and not os.environ.get("UMA_SOCK"):
        return f"{start} {private}`; clients look there first"
    return f"{start} {private or 'PATH'}`, and set UMA_SOCK to that path"


def unreachable(path: str, error: OSError) -> ConnectionFailed:
    """Return the error of a failed connect: ``OtherUser`` where this user may not connect."""
    if isinstance(error, PermissionError):
        whose = f"{path} is {_whose(path)}"
        return OtherUser(f"{whose}; set UMA_SOCK to the socket of a daemon of your own")
    why = error.strerror or str(error)
    command = "umaserve"
    # without it, the daemon would listen elsewhere
    if path not in (os.path.expanduser(os.environ.get("UMA_SOCK", "")), DEFAULT_SOCKET):
        command += f" --socket {path}"
    text = f"no daemon at {path} ({why}); start one with `{command}` or set UMA_SOCK"
    return ConnectionFailed(text)


def _whose(path: str) -> str:
    try:
        uid = os.lstat(path).st_uid
    except OSError:
        return "another user's"
    return "closed to its own user" if is_own(uid) else f"a socket of {user_name(uid)}, not yours"


def gone(path: str) -> str:
    """Return the message about a connection that ended too early."""
    return (
        f"the daemon at {path} closed the connection before the answer was complete; "
        "see its log, or start one with `umaserve`"
    )
