"""Ends what a test run started and did not end, whatever became of the run.

A process of its own waits for the run's end, killed or not, and then kills whatever still carries
the run's mark in its environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

MARK = "UMA_TEST_RUN"
# a process that leaves no core file shows its environment to root alone
CORE_DUMPS = os.geteuid() != 0
ROUNDS = 3  # that have to find nothing: what is killed may just have started something


def watch() -> int:
    """Mark this process and all that it starts from now on; they outlive it by a moment at most.

    Returns a descriptor; closing it is the end of the run.
    """
    run = f"{os.getpid()}-{time.time_ns()}"
    read, write = os.pipe()  # no child inherits the write end, so it ends with this process
    try:
        subprocess.Popen(
            [sys.executable, __file__, run], stdin=read, stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(read)
    os.environ[MARK] = run
    if CORE_DUMPS:
        os.environ["UMA_CORE_DUMPS"] = "1"
    return write


def end_all(run: str) -> None:
    quiet = 0
    while quiet < ROUNDS:
        found = list(marked(run))
        quiet = 0 if found else quiet + 1
        for process in found:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        time.sleep(0.1)


def marked(run: str) -> list[psutil.Process]:
    out = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process)
        except (psutil.Error, OSError):  # gone, or somebody else's
            continue
    return out


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_all(sys.argv[1])
