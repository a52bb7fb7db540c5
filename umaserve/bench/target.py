"""The daemon that is measured: one that runs already, or one of our own that ends with us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from umaserve.bench import BenchError
from umaserve.client import Client, ConnectionFailed
from umaserve.system.own_python import run_module

ANSWER_S = 30.0
STOP_S = 30.0
POLL_S = 0.1
LOG_LINES = 8
PREFIX, SOCKET = "umaserve-bench-", "uma.sock"
SOCKET_PATH_BYTES = 103  # macOS takes no more
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Report = Callable[[float], None]


def daemon_at(path: str) -> dict[str, Any] | str:
    """``info`` of the daemon that listens at ``path``, else why there is none."""
    try:
        with Client(path, timeout=ANSWER_S) as client:
            return client.info()
    except ConnectionFailed as error:
        return str(error).partition(";")[0]


def wait_until_serving(path: str, report: Report) -> dict[str, Any]:
    """``info`` of a daemon that listens, once its model is there; ``report`` gets its progress.

    Raises ``BenchError`` when it has no model, and ``ConnectionFailed`` when it goes away.
    """
    with Client(path, timeout=ANSWER_S) as client:
        while True:
            info = client.info()
            if info["state"] == "serving":
                return info
            if info["state"] == "asleep":
                client.tokenize("")  # wakes its model
                continue
            if info["state"] != "loading":
                what = "has no model" if info["state"] == "unloaded" else "is shutting down"
                raise BenchError(
                    f"the daemon at {path} {what}; `umaserve load MODEL` gives it one, "
                    "--fresh measures a daemon of its own"
                )
            report(float((info["model"] or {}).get("progress") or 0.0))
            time.sleep(POLL_S)


def private_folder() -> str:
    """A new folder, ours alone, in which a socket's path is short enough for every system."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(os.path.join(folder, SOCKET))) > SOCKET_PATH_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    return folder


class OwnDaemon:
    """``umaserve serve`` on a socket in a folder of its own, gone when the block is left.

    Settings are those of the environment and the configuration file, with ``flags`` above them; it
    writes no files of the user's.  It is in a session of its own: a Ctrl-C is for us, and we end
    it.
    """

    def __init__(self, *flags: str) -> None:
        self._folder = private_folder()
        self.path = os.path.join(self._folder, SOCKET)
        self._log = Path(self._folder) / "log"
        own = ("--socket", self.path, "--http", "off", "--dashboard", "off")
        quiet = ("--scorecard", "", "--trace", "")
        command = [*run_module("umaserve"), "serve", *own, *quiet, *flags]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> OwnDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(STOP_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
            # its engine notices and ends too
            process.kill()
            process.wait()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, report: Report) -> dict[str, Any]:
        """``info`` once it serves.  Raises ``BenchError`` with its last words if it ends before."""
        while isinstance(daemon_at(self.path), str):
            if self._process.poll() is not None:
                raise BenchError(self.last_words())
            time.sleep(POLL_S)
        try:
            return wait_until_serving(self.path, report)
        except ConnectionFailed:
            self._process.wait(STOP_S)
            raise BenchError(self.last_words()) from None

    def ended(self) -> bool:
        """Whether it has gone, or is just going."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """Why the benchmark's daemon is not there, from its log."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()[-LOG_LINES:]
        said = "\n  ".join(lines) or "it said nothing"
        return f"the benchmark's own daemon ended; its log:\n  {said}"


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGQUIT unwind the block as an exit does, so that nothing stays behind;
    what we were told to ignore stays ignored."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    was = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in was.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in was.items():
            signal.signal(number, handler)
