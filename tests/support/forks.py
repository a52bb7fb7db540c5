"""Daemons and engines of tests, forked from a process that has imported all: a start is short.

What such a process does from `serve` or the engine's `main` on is what any other does.  The start
as a program is what tests of ``umaserve serve`` are for.  Engines and gateways of a forked daemon
are forked too (`tests.support.patches.children`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from umaserve.llama import builds
from umaserve.one_thread import require_one_thread

ROOT = Path(__file__).resolve().parents[2]
FRONT, ENGINE = "tests.support.patches.front", "tests.support.patches.warm_engine"
COMMAND = "tests.support.patches.command"
FAKE_ENGINE = [sys.executable, str(ROOT / "tests" / "support" / "fake_engine.py")]
MOST_FDS = 16
NAME = "uma-forks"  # of a process that forks a daemon's children, and is no part of the product
ROOM = "-" * 2000  # for the command lines that forked processes show


def may_fork(backend: str, policy: str) -> bool:
    """Whether an engine may be forked: no accelerator's library survives that.

    Nor does a process that has imported numba look anew where ``PYTHONPATH`` has a policy.
    """
    build = builds.select(backend)
    on_processor = sys.platform == "linux" and build is not None and build.backend == "cpu"
    return on_processor and ":" not in policy


def receive(asked: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next question and the descriptors that came with it; None at the end."""
    line, fds, _, _ = socket.recv_fds(asked, 1 << 16, MOST_FDS)
    while line and not line.endswith(b"\n"):
        line += asked.recv(1 << 16)
    return (json.loads(line) if line else None), fds


def answer(fd: int, run: Callable[..., Any]) -> None:
    """Fork a child for each question, until nobody asks any more.

    ``run`` does in a child what was asked for; it also gets the descriptors that came with the
    question.  Raises RuntimeError in a process of several threads.
    """
    require_one_thread()
    with socket.socket(fileno=fd) as asked:
        while True:
            ask, fds = receive(asked)
            if ask is None:
                return
            if "child" in ask:
                pid, status = os.waitpid(ask["child"], os.WNOHANG)
                said = os.waitstatus_to_exitcode(status) if pid else None
            else:
                require_one_thread()
                said = os.fork()  # noqa: TID251
                if said == 0:
                    break
            for given in fds:
                os.close(given)
            asked.sendall(json.dumps(said).encode() + b"\n")
    os.environ.clear()
    os.environ.update(ask["environment"])
    if ask["log"]:
        log = os.open(ask["log"], os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    leave(lambda: run(ask["what"], *fds))


def leave(run: Callable[[], int | None]) -> NoReturn:
    """Run a program in this forked process and end it with the program's exit status.

    Python is not taken down: that would copy each page of objects that the processes share.
    """
    try:
        status: Any = run()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


class _Forker:
    """The process that forks, and the way to it."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--forks", str(theirs.fileno()), ROOM],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
                env=forking_environment(), pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self.answers = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def ask(self, fds: Sequence[int] = (), **what: Any) -> Any:
        with self.lock:
            line = json.dumps(what).encode() + b"\n"
            sent = socket.send_fds(self.socket, [line], fds)
            self.socket.sendall(line[sent:])
            return json.loads(self.answers.readline())


def forking_environment() -> dict[str, str]:
    """Return variables for a process that forks: numpy's OpenBLAS starts no threads there."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


_forkers: dict[str, _Forker] = {}


def _forker(module: str) -> _Forker:
    if module not in _forkers:
        _forkers[module] = _Forker(module)
    return _forkers[module]


class Forked:
    """A child of a process that runs ``module``, as `subprocess.Popen` has it.

    ``what`` and ``fds`` are what the module's ``run`` gets, ``log`` is where the child writes.  It
    inherits nothing of this process that was changed after the first one: no signals, no limits, no
    folder.
    """

    def __init__(
        self, what: Any, log: Path | None, environment: dict[str, str], *,
        module: str = FRONT, fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        if log:
            log.touch()
        sys.audit("uma.forked")
        self._forker = _forker(module)
        self.pid: int = self._forker.ask(
            fds, what=what, log=str(log or ""), environment=environment
        )
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forker.ask(child=self.pid)
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
