"""Ends a test run in which engines do not start, and says what they do instead.

`EngineDidNotStart` is raised where an engine or a daemon is not ready in time.  After
`MOST_IN_A_ROW` tests that failed of it, one after another, the run stops: the others would wait for
the same.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

START_S = 40.0  # less than a quick test may take, so that its failure says why
MOST_IN_A_ROW = 10
STACK_S = 15.0
LAST_BYTES = 3000


class EngineDidNotStart(AssertionError):
    """An engine that was not ready in time; the message has the stacks of its threads."""


class InARow:
    """Counts tests that failed because no engine started, and forgets them at one that passed."""

    def __init__(self) -> None:
        self.count = 0

    def why_to_stop(self, outcome: str, failure: str) -> str:
        """Return why the run is to stop after the report of a test's phase; empty: it goes on."""
        if outcome == "failed":
            self.count = self.count + 1 if EngineDidNotStart.__name__ in failure else 0
        elif outcome == "passed":
            self.count = 0
        if self.count < MOST_IN_A_ROW:
            return ""
        return f"no engine started in {self.count} tests in a row; the last said:\n{failure}"


def not_started(what: str, pid: int, log: Path | None = None) -> EngineDidNotStart:
    """Return an error with the last lines of a process, and the stacks of it and its children."""
    lines = [what]
    if log is not None and log.exists():
        lines += ["last lines:", log.read_bytes()[-LAST_BYTES:].decode("utf-8", "replace")]
    return EngineDidNotStart("\n".join([*lines, *_stacks(pid)]))


def _stacks(pid: int) -> list[str]:
    try:
        process = psutil.Process(pid)
        found = [process, *process.children(recursive=True)]
    except psutil.Error:
        return [f"process {pid} is gone"]
    return [text for each in found for text in (f"process {each.pid}:", stack_of(each.pid))]


def stack_of(pid: int) -> str:
    """Return the frames of all threads, native where gdb is there, else where the kernel waits."""
    gdb = shutil.which("gdb")
    if gdb:
        command = [gdb, "-q", "-batch", "-ex", "thread apply all bt 20", "-p", str(pid)]
        return _said(lambda: subprocess.run(
            command, capture_output=True, text=True, timeout=STACK_S, check=False
        ).stdout)  # fmt: skip
    return _said(lambda: "\n".join(
        f"{task.name} {(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()}"
        for task in Path(f"/proc/{pid}/task").iterdir()
    ))  # fmt: skip


def _said(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except (OSError, subprocess.SubprocessError) as error:
        return f"no stack: {error}"
