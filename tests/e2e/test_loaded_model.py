"""What people are told of the model that is loaded, and what a daemon does while it is idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_client import ask
from tests.support.made_models import written
from tests.support.real_daemon import real
from tests.support.server_harness import ROOT, DaemonProcess, eventually
from umaserve.cli.doctor.idle import family, idle_text, usage

OFF = "context shift is off: the model's positions have several dimensions"
WATCHED_S = 10.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    model = str(written("qwen2vl-micro", folder / "model.gguf"))
    with real(folder, model=model, http="127.0.0.1:0") as daemon:
        yield daemon


def told(daemon: DaemonProcess, *words: str) -> str:
    command = [sys.executable, "-m", "umaserve", *words]
    environment = {**os.environ, "UMA_SOCK": daemon.path}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    return done.stdout


def test_what_is_off_is_said_everywhere(daemon: DaemonProcess) -> None:
    assert daemon.info()["model"]["off"] == OFF
    eventually(lambda: f"; {OFF}" in daemon.log)
    doctor = told(daemon, "doctor", "--model", daemon.model)
    assert OFF in doctor and "times a second" in doctor
    assert OFF in told(daemon, "models")


def test_model_that_can_have_all_has_nothing_off(tmp_path: Path) -> None:
    with real(tmp_path) as daemon:
        assert daemon.info()["model"]["off"] == ""
        eventually(lambda: "serving" in daemon.log)
        assert " off" not in daemon.log


def test_idle_daemon_sleeps(daemon: DaemonProcess) -> None:
    """It was asked over HTTP before, and nobody is connected."""
    assert ask(daemon, "/health").status == 200
    daemon.rest()
    pids = list(family(daemon.process.pid))
    assert len(pids) >= 3
    before = {pid: usage(pid) for pid in pids}
    time.sleep(WATCHED_S)
    wakes = {pid: usage(pid).sleeps - before[pid].sleeps for pid in pids}
    assert 0 < sum(wakes.values()) <= 10 * WATCHED_S, wakes


def test_busy_daemon_is_not_measured() -> None:
    assert idle_text({"pid": os.getpid(), "sessions": [{"id": "a"}]}) == ""
