"""The thread that computes prompts stands back, wherever the daemon itself stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import write_model
from tests.support.strangers import IS_ROOT, UID
from umaserve.engine.native.niceness import LAST, NICENESS

_SCRIPT = f"""
import os, sys, threading
from umaserve.engine.native.niceness import stand_back
os.nice(int(sys.argv[1]))
if {IS_ROOT}:
    os.setuid({UID})  # root may do anything
stand_back()
print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness of threads is Linux's")
def test_a_daemon_that_stands_back_further_keeps_that() -> None:
    """Its prompt thread ended with EACCES: only root may go forward again."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for more in (0, NICENESS + 3):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(more)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == min(19, max(own + more, NICENESS))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness of threads is Linux's")
def test_streams_of_other_models_go_before_a_model_that_encodes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bert.gguf", "bert-micro")
    with DrivenEngine(model=model, n_ctx=0, n_positions=512) as engine:
        assert os.getpriority(os.PRIO_PROCESS, engine.process.pid) >= LAST
