"""Identity of the peer of a Unix socket, and whether it is this process's own user.

This module needs only the standard library: the command-line clients use it and must start quickly.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple


class Peer(NamedTuple):
    """``pid`` is 0 and ``uid`` -1 where the system does not say."""

    pid: int = 0
    uid: int = -1

    @property
    def app(self) -> str:
        """Name of the process, where the system tells."""
        if sys.platform == "darwin":
            return _name_on_macos(self.pid)
        try:
            # any bytes, and cut after 15 of them, which may be within a character
            with open(f"/proc/{self.pid}/comm", "rb") as file:
                name = file.read().strip()
            if len(name) == 15:
                name = _whole_name(self.pid, name)
        except OSError:
            return f"pid {self.pid}" if self.pid else ""
        return name.decode("utf-8", "replace")


def _whole_name(pid: int, cut: bytes) -> bytes:
    """Complete a name cut by Linux, from the command line or the program's file; else ``cut``."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            names = [*file.read().split(b"\0")[:2], os.fsencode(os.readlink(f"/proc/{pid}/exe"))]
    except OSError:
        return cut
    whole = [os.path.basename(name) for name in names]
    return next((name for name in whole if name.startswith(cut)), cut)


def peer_of(sock: socket.socket) -> Peer:
    """Process and user of the peer, as they were when it connected (or began to listen)."""
    if sys.platform == "darwin":
        # SOL_LOCAL 0, LOCAL_PEERCRED 1 (struct xucred: version, uid, ...), LOCAL_PEERPID 2: as read
        # in <sys/un.h>; this branch has not been run
        _, uid = struct.unpack("=II", sock.getsockopt(0, 1, 76)[:8])
        try:
            (pid,) = struct.unpack("=i", sock.getsockopt(0, 2, 4))
        except OSError:  # ENOTCONN: the peer has closed; its user is known all the same
            pid = 0
        return Peer(pid, uid)
    if hasattr(socket, "SO_PEERCRED"):
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        # the user id has no sign: one above 2**31 must not pass for an unknown one
        pid, uid, _ = struct.unpack("iII", data)
        return Peer(pid, uid)
    return Peer()


def _name_on_macos(pid: int) -> str:
    """The last part of the program's path (``proc_pidpath``, <libproc.h>), as read; never run."""
    import ctypes

    size = 4096  # PROC_PIDPATHINFO_MAXSIZE
    path = ctypes.create_string_buffer(size)
    try:
        length = ctypes.CDLL(None).proc_pidpath(pid, path, size)
    except (OSError, AttributeError):
        length = 0
    if length <= 0:
        return f"pid {pid}" if pid else ""
    return os.path.basename(path.raw[:length]).decode("utf-8", "replace")


def is_own(uid: int) -> bool:
    """Whether a peer or a file of that user is as good as our own.

    The user of this process is, and so is an unknown one (-1), where the system does not tell.
    Root is not: its daemon admits nobody else, so a socket of root's leads to no daemon of ours.
    """
    return uid in (os.geteuid(), -1)


def user_name(uid: int) -> str:
    """``nobody (uid 65534)``, or the number alone where the system knows no name."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
