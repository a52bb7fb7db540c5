"""Engines with many settings, one after another, each in a process of its own.

    python -m tests.support.settings_runner

reads a JSON object of ``Start`` fields a line and answers with a JSON object a line: ``refused``
(the message of a load that failed), ``ends`` (reason and number of tokens of each request) or
``died`` (status and what was printed last).  An engine that aborts kills nothing but itself, and
what takes long at the start of an engine, imports and compiled code, is there before it is forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.warm_engine import preload
from umaserve.engine import __main__ as engine_main
from umaserve.wire import messages as m

PROMPTS = ("Hello", "x = 1\n" * 40, "a b", "def f(n):")
TOKENS = 6


class ForkedProcess:
    """What `DrivenEngine` wants of a ``subprocess.Popen``."""

    def __init__(self, arguments: list[str], log: Any) -> None:
        self.pid = os.fork()
        self.status: int | None = None
        if self.pid == 0:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            kept = {0, 1, 2, *(int(word) for word in arguments if word.isdigit())}
            for fd in [int(name) for name in os.listdir("/dev/fd")]:
                if fd not in kept:  # the front's end of the socket among them
                    with contextlib.suppress(OSError):
                        os.close(fd)
            sys.argv[1:] = arguments
            status = 1
            try:
                status = engine_main.main()
            except BaseException:  # noqa: BLE001 - the parent reads it from the log
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)

    def poll(self) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, timeout: float = 60.0) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("engine", timeout)
            time.sleep(0.002)
        assert self.status is not None
        return self.status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def outcome(settings: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as log:
        try:
            engine = DrivenEngine(spawn=lambda words: ForkedProcess(words, log), **settings)
        except AssertionError as error:
            log.seek(0)
            return {"died": str(error), "last": log.read().decode("utf-8", "replace")[-2000:]}
        if engine.failure:
            return {"refused": engine.failure, "status": engine.close()}
        try:
            ends = _serve(engine)
        except AssertionError as error:
            log.seek(0)
            return {"died": str(error), "last": log.read().decode("utf-8", "replace")[-2000:]}
        finally:
            status = engine.close()
        return {"ends": ends, "status": status}


def _serve(engine: DrivenEngine) -> list[tuple[int, int]]:
    """Short and long prompts together, more than there are sequences where slots allow it."""
    sampling = m.Sampling(temperature=0.0, ignore_eos=True)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(min(engine.start.n_slots, 6))]
    fit = [p for p in prompts if 2 * len(p) < engine.ready.n_positions - TOKENS] or ["a"]
    serials = engine.submit_together(fit, max_tokens=TOKENS, sampling=sampling)
    for serial in serials:
        engine.wait(serial, timeout=30)
    return [(engine.reason(serial), len(engine.generated(serial))) for serial in serials]


def main() -> None:
    preload()
    for line in sys.stdin:
        print(json.dumps(outcome(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
