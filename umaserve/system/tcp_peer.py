"""User whose process holds the other end of a TCP connection within this machine.

Linux reports the user of each socket, by its addresses: over netlink (sock_diag(7)), else in
``/proc/net/tcp``.  Other systems do not report the user.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import TypeAlias

UNTOLD = -1  # user id where the system does not tell
NOBODY = -2  # user id where no open socket of this machine is the other end

Address = tuple[str, int]
Told: TypeAlias = "tuple[str, int | None] | None"  # by a connection that may be closed
Look = Callable[[Address, Address], "int | None"]

# <linux/sock_diag.h>, <linux/inet_diag.h>, <linux/netlink.h>
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR, _ANY = 4, 20, 1, 2, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS = struct.Struct("!HH")
_REST = struct.Struct("=III")  # interface, cookie
_UID_AND_INODE = struct.Struct("=II")
_UID_AT = _HEADER.size + 4 + 48 + 12  # behind the state, the addresses and three counters
_ANSWER_BYTES = 8192
_PROC = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = b"\0" * 10 + b"\xff\xff"  # in front of an IPv4 address in an IPv6 one


class TcpPeers:
    """Finds the user of a connection's other end.

    How it is told is chosen once: a look-up that fails later finds ``NOBODY``.
    """

    def __init__(self) -> None:
        self._look = _working() if sys.platform == "linux" else None

    def uid(self, theirs: Told, ours: Told) -> int:
        """User id of the socket that is bound to ``theirs`` and connected to ``ours``.

        A socket that its program has closed belongs to nobody.
        """
        if self._look is None:
            return UNTOLD
        if theirs is None or ours is None or theirs[1] is None or ours[1] is None:
            return NOBODY
        try:
            found = self._look((theirs[0], theirs[1]), (ours[0], ours[1]))
        except (OSError, ValueError, struct.error):
            found = None
        return NOBODY if found is None else found


def _working() -> Look | None:
    nowhere = ("127.0.0.1", 0)
    for look in (by_netlink, by_proc):
        try:
            look(nowhere, nowhere)
        except OSError:
            continue
        return look
    return None


def by_netlink(local: Address, remote: Address) -> int | None:
    """User of the socket with these ends; ``None`` for no such socket.  Raises ``OSError``."""
    (a, port_a), (b, port_b) = local, remote
    family = socket.AF_INET6 if ":" in a else socket.AF_INET
    ends = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host in (a, b))
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ANY)
    question += _PORTS.pack(port_a, port_b) + ends + _REST.pack(0, _ANY, _ANY)
    head = _HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.setblocking(False)  # it answers while it is asked
        kernel.sendto(head + question, (0, 0))
        answer, (sender, _) = kernel.recvfrom(_ANSWER_BYTES)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if sender or kind == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if not sender and number == errno.ENOENT:
            return None
        raise OSError(number, "the kernel tells of no sockets")
    uid, inode = _UID_AND_INODE.unpack_from(answer, _UID_AT)
    return int(uid) if inode else None  # without an inode it is closed, and its user reads 0


def by_proc(local: Address, remote: Address) -> int | None:
    """User as from `by_netlink`, by a search through all sockets in ``/proc/net``."""
    ends = [_spelled(local), _spelled(remote)]
    for path in _PROC:
        if path != _PROC[0] and not os.path.exists(path):
            continue  # a kernel without IPv6
        with open(path, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if fields[1] in ends[0] and fields[2] in ends[1]:
                    return int(fields[7]) if fields[9] != "0" else None
    return None


def _spelled(address: Address) -> tuple[str, ...]:
    """An address as the tables have it: an IPv4 address has two spellings."""
    host, port = address
    raw = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    if len(raw) == 4:
        raw = _MAPPED + raw
    forms = [raw, raw[12:]] if raw.startswith(_MAPPED) else [raw]
    return tuple(f"{_words(form)}:{port:04X}" for form in forms)


def _words(raw: bytes) -> str:
    """Hexadecimal words in the processor's order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(raw) // 4}I", raw))
