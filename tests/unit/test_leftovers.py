"""A test run leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.leftovers import MARK

ROOT = Path(__file__).resolve().parents[2]

# a run that starts a process, which starts another, and tells their numbers
RUN = """
import subprocess, sys, time
from tests.support import leftovers
write = leftovers.watch()
child = "import subprocess, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True)"
child += "; time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
print(process.pid, process.stdout.readline().strip(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_nothing(number: signal.Signals) -> None:
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert run.stdout is not None
    children = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(children) == 2
    run.send_signal(number)
    run.wait(20)
    run.stdout.close()
    deadline = time.monotonic() + 30
    while any(child.is_running() for child in children):
        assert time.monotonic() < deadline, "something was left behind"
        time.sleep(0.05)
