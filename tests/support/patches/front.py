"""Faults and spies inside a daemon's process: ``DaemonProcess(patch=FUNCTION)``.

    python -m tests.support.patches.front \\
        '[{SETTINGS}, ENGINE'S COMMAND OR null, "FUNCTION OR NOTHING"]'
"""

from __future__ import annotations

import atexit
import gc
import json
import subprocess
import sys
import threading
from typing import Any

from tests.support.forks import answer
from tests.support.patches import children
from tests.support.patches.noted_requests import note_requests
from tests.support.patches.own_faults import own_faults
from umaserve.cli.parts.common import guarded
from umaserve.config import Config
from umaserve.config.kinds import ADAPTERS
from umaserve.model_settings import ModelSettings
from umaserve.models import needs as memory
from umaserve.server import daemon
from umaserve.server.clients import intake
from umaserve.server.engines import handle as engine_handle
from umaserve.server.engines import slow_files
from umaserve.server.engines.start import process
from umaserve.server.main import serve

__all__ = ["note_requests", "own_faults"]


def no_memory() -> None:
    """As on a machine where two models do not fit."""
    memory.available_bytes = lambda: 0


def short_frames() -> None:
    intake.FRAME_S = 0.5


def small_budgets() -> None:
    daemon.PARTIAL_BYTES = daemon.UNSENT_BYTES = 1 << 20


def stuck_files() -> None:
    """A file system that does not answer, for files with "stuck" in their path."""
    look_at = memory.look_at

    def look(path: str) -> Any:
        if "stuck" in path:
            print("looking", flush=True)
            threading.Event().wait()
        return look_at(path)

    slow_files.LIMIT_S, memory.look_at = 1.0, look


def impatient() -> None:
    """With a load that says nothing."""
    engine_handle.OPEN_SILENCE_S = engine_handle.LOAD_SILENCE_S = 1.0


def unkillable() -> None:
    """An engine in a system call that does not end."""
    engine_handle.UNKILLABLE_S = process.REAP_S = 0.3
    subprocess.Popen.kill = lambda self: None


def tell_garbage() -> None:
    """At the end, how many objects no collection looks at, and how many one does."""
    atexit.register(lambda: print("kept", gc.get_freeze_count(), "seen", len(gc.get_objects())))


def run(what: list[Any]) -> None:
    """Serve until told to end, then exit."""
    settings, engine, patch = what
    if patch:
        globals()[patch]()
    settings["lora"] = ADAPTERS.parse(settings.get("lora", ""))
    models = {name: ModelSettings(**each) for name, each in settings.pop("models", {}).items()}
    sys.exit(guarded(lambda _: serve(Config(**settings, models=models), engine), []))


def run_forked(what: list[Any]) -> None:
    """Serve in a process that was forked."""
    children.fork_children()
    run(what)


if __name__ == "__main__":
    if sys.argv[1] == "--forks":
        children.preload()
        answer(int(sys.argv[2]), run_forked)
    else:
        run(json.loads(sys.argv[1]))
