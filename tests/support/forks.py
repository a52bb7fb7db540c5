"""Daemons of tests, forked from a process that has imported the front: a start takes half the time.

What such a daemon does from `serve` on is what any other does.  Its own start as a program is what
tests of ``umaserve serve`` are for.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def answer(fd: int, run: Callable[[Any], None]) -> None:
    """In the process that forks: until nobody asks any more.

    Children return from it too, with what they were asked to ``run`` done.
    """
    with socket.socket(fileno=fd) as asked, asked.makefile("rb") as lines:
        for line in lines:
            ask = json.loads(line)
            if "child" in ask:
                pid, status = os.waitpid(ask["child"], os.WNOHANG)
                said = os.waitstatus_to_exitcode(status) if pid else None
            else:
                said = os.fork()
                if said == 0:
                    break
            asked.sendall(json.dumps(said).encode() + b"\n")
        else:
            return
    os.environ.clear()
    os.environ.update(ask["environment"])
    log = os.open(ask["log"], os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    run(ask["what"])


class _Forker:
    """The process that forks, and the way to it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.patches.front", "--forks",
                 str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self.answers = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def ask(self, **what: Any) -> Any:
        with self.lock:
            self.socket.sendall(json.dumps(what).encode() + b"\n")
            return json.loads(self.answers.readline())


_forkers: list[_Forker] = []


def _forker() -> _Forker:
    if not _forkers:
        _forkers.append(_Forker())
    return _forkers[0]


class Forked:
    """A child of that process, as `subprocess.Popen` has it.

    ``what`` is the argument of `tests.support.patches.front`, ``log`` where it writes.  It inherits
    nothing of this process that was changed after the first one: no signals, no limits, no folder.
    """

    def __init__(self, what: Any, log: Path, environment: dict[str, str]) -> None:
        log.touch()
        self.pid: int = _forker().ask(what=what, log=str(log), environment=environment)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _forker().ask(child=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
