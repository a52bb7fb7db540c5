"""Children of a forked daemon: engines and gateways, forked from a process that imported them.

`fork_children` splits the daemon's process before it has threads.  Its first child waits and forks
the others; each becomes the daemon's own child, with the descriptors, variables and blocked signals
that `subprocess.Popen` would give it.  Other programs are started as always.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from tests.support.forks import FAKE_ENGINE, NAME, leave, receive
from umaserve.one_thread import require_one_thread
from umaserve.system.own_python import run_module

PR_SET_CHILD_SUBREAPER = 36
ARG_START = 45  # of the fields of /proc/self/stat behind the name
STDIO = 3


def _engine(words: Sequence[str]) -> int:
    from umaserve.engine import __main__ as engine

    sys.argv = ["umaserve.engine", *words]
    return engine.main()


def _gateway(words: Sequence[str]) -> int:
    from umaserve.gateway import __main__ as gateway
    from umaserve.system.own_process import die_with_parent

    die_with_parent(os.getppid())
    return gateway.main(words[0])


def _fake_engine(words: Sequence[str]) -> int:
    sys.argv = ["fake_engine", *words]
    importlib.import_module("tests.support.fake_engine").main()  # it reads variables
    return 0


PROGRAMS: list[tuple[list[str], Callable[[Sequence[str]], int]]] = [
    (run_module("umaserve.engine"), _engine),
    (run_module("umaserve.gateway"), _gateway),
    (FAKE_ENGINE, _fake_engine),
]


def preload() -> None:
    """Import what gateways and fake engines import."""
    importlib.import_module("umaserve.gateway.__main__")
    importlib.import_module("tests.support.fake_engine")
    del sys.modules["tests.support.fake_engine"]


def fork_children() -> None:
    """From now on, fork this process's engines and gateways.  Return in each of them never."""
    ours, theirs = socket.socketpair()
    require_one_thread()
    if os.fork() == 0:  # noqa: TID251
        ours.close()
        _fork_each(theirs)
    theirs.close()
    _Popen.asked = ours
    subprocess.Popen = _Popen  # type: ignore[misc]


class _Popen(subprocess.Popen):
    asked: socket.socket

    def _execute_child(self, args: Any, *rest: Any) -> None:
        words = list(args) if isinstance(args, (list, tuple)) else [args]
        if not any(words[: len(command)] == command for command, _ in PROGRAMS):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        # as CPython 3.10 to 3.14 name them
        _, _, _, pass_fds, _, env, _, _, _, *pipes = rest
        stdio = [pipes[0], pipes[3], pipes[5]]
        given = [fd for fd in stdio if fd != -1]
        ask = {
            "words": words,
            "environment": dict(os.environ if env is None else env),
            "stdio": [number for number in range(STDIO) if stdio[number] != -1],
            "fds": list(pass_fds),
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a child whose parent ends becomes ours
        socket.send_fds(self.asked, [json.dumps(ask).encode() + b"\n"], [*given, *pass_fds])
        self.pid = int(self.asked.recv(64))
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]


def _fork_each(asked: socket.socket) -> NoReturn:
    """Fork a child of the parent for each question, until the parent's end."""
    _name(NAME)
    while True:
        ask, fds = receive(asked)
        if ask is None:
            os._exit(0)
        require_one_thread()
        read, write = os.pipe()
        between = os.fork()  # noqa: TID251
        if between == 0:
            between = os.getpid()
            child = os.fork()  # noqa: TID251
            if child:
                os.write(write, str(child).encode())
                os._exit(0)
            for fd in (read, write, asked.detach()):
                os.close(fd)
            while os.getppid() == between:
                time.sleep(0.0002)
            leave(partial(_become, ask, fds))
        os.waitpid(between, 0)
        asked.sendall(os.read(read, 64))
        for fd in (read, write, *fds):
            os.close(fd)


def _become(ask: dict[str, Any], fds: list[int]) -> int:
    """Run a program of `PROGRAMS` in this process; returns its exit status."""
    numbers = [*ask["stdio"], *ask["fds"]]
    above = max([*numbers, *fds], default=0) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(ask["environment"])
    signal.pthread_sigmask(signal.SIG_SETMASK, ask["blocked"])
    _name("python")
    _show(ask["words"])
    command, run = next(x for x in PROGRAMS if ask["words"][: len(x[0])] == x[0])
    return run(ask["words"][len(command) :])


def _name(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _show(words: list[str]) -> None:
    """Put another command line where the system shows this process's, as far as there is room."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[ARG_START : ARG_START + 2])
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
