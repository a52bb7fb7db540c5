"""Compiles samplers and scheduler in a process of their own, while the last of a build is made.

They take one core for more than a minute, and need the library but not uma-chat.  What fails here
is tried again by ``python -m umaserve.engine.start.compile``, so it costs no build.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from umaserve.system.own_python import run_module

from .process import end_group
from .progress import Reporter, Step

MODULE = "umaserve.engine.start.compile"
_TITLE = "Compiling samplers and scheduler"
_SHARE = re.compile(r"(\d+)% of the functions")
_SHOWN = 5  # lines of what it said last, where it failed


@contextmanager
def compiled_meanwhile(report: Reporter) -> Iterator[None]:
    """Begins before the block and is done after it; where the block fails, it is ended at once.

    The build that is there must have its binding.  A failure is told to `report`.
    """
    with report.step(_TITLE) as step:
        child = subprocess.Popen(
            run_module(MODULE),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us, who end it
        )
        said: deque[str] = deque(maxlen=_SHOWN)
        reader = threading.Thread(target=_read, args=(child, step, said), daemon=True)
        reader.start()
        try:
            yield
            status = child.wait()
        finally:
            end_group(child)
            reader.join()
    if status:
        report.say("\n".join([f"{_TITLE} failed with status {status}:", *said]))


def _read(child: subprocess.Popen[str], step: Step, said: deque[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        said.append(line.rstrip())
        if share := _SHARE.search(line):
            step.update(int(share[1]), 100)
