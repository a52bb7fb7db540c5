"""Process of an engine: how it is spawned, and what it leaves."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence

import trio

from umaserve.system.own_process import signals_left_to_front
from umaserve.wire import messages as m
from umaserve.wire import table as t

STDERR_LINE_BYTES = 2000
REAP_S = 1.0


def spawn(
    command: Sequence[str], start: m.Start
) -> tuple[subprocess.Popen[bytes], socket.socket, t.SessionTable, list[int]]:
    """Return a process, and the front's ends of what it shares with it.

    The descriptors at the end are those of the vocabulary's texts, the wake pipe and standard
    error.  Raise ``OSError`` where no process can be made; nothing is left open then.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pipe() -> tuple[int, int]:
            read, write = os.pipe()
            ours.callback(os.close, read)
            theirs.callback(os.close, write)
            return read, write

        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.callback(control.close)
        theirs.callback(other.close)
        control.setblocking(False)
        wake_read, wake_write = pipe()
        spec = t.TableSpec(start.n_slots, start.positions + 1)
        table, table_fd = t.SessionTable.create(spec)
        theirs.callback(os.close, table_fd)
        pieces = t.shared_file(t.PIECE_BYTES)
        ours.callback(os.close, pieces)
        err_read, err_write = pipe()
        os.set_blocking(err_read, False)
        os.set_blocking(wake_write, False)
        inherited = {
            "--control": other.fileno(), "--wake": wake_write, "--table": table_fd,
            "--pieces": pieces,
        }  # fmt: skip
        with signals_left_to_front():
            process = subprocess.Popen(
                [*command, *(str(each) for pair in inherited.items() for each in pair)],
                stdin=subprocess.DEVNULL,
                stdout=err_write,  # whatever a library prints must not reach a dashboard
                stderr=err_write,
                pass_fds=tuple(inherited.values()),
            )
        ours.pop_all()
        return process, control, table, [pieces, wake_read, err_read]


async def wait_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old or emulated one
        await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    process.wait()


def reap(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for a process that was killed, and return its status; None where it does not end.

    A system call on a file that does not answer keeps even such a process.
    """
    try:
        return process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        return None


async def read_lines(fd: int, take: Callable[[str], None], eof: trio.Event) -> None:
    """Pass each line that a process writes to ``take``, until it has ended; ``eof`` is set then."""
    rest = b""

    def keep(line: bytes) -> None:
        if text := line[:STDERR_LINE_BYTES].decode("utf-8", "replace").rstrip():
            take(text)

    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            continue
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            keep(line)
        rest = rest[-STDERR_LINE_BYTES:]
    keep(rest)
    eof.set()
