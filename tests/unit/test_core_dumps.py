"""A crash leaves no core file, which would hold everybody's prompts, unless somebody asked."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import working_folder
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.config import load_config

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's calls")
_ASK = """
import ctypes, resource, sys
from umaserve.system.own_process import forbid_core_dumps
forbid_core_dumps()
soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
print(soft, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) if sys.platform == "linux" else 0)
"""


def allow() -> None:
    """As with ``ulimit -c unlimited``."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    allow()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def cores(folder: Path) -> list[Path]:
    return list(folder.glob("core*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in which crashes leave core files; skipped where they go elsewhere."""
    found = tmp_path / "crashes"
    found.mkdir()
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    subprocess.run([sys.executable, "-c", crash], cwd=found, preexec_fn=allow, check=False)
    if not cores(found):
        pytest.skip("no core file of anybody lands in its folder here; limits are tested elsewhere")
    for path in cores(found):
        path.unlink()
    yield found
    for path in cores(found):  # they are large
        path.unlink()


def soft_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Max core file size"))
    return line.split()[4]


def crash(pid: int) -> None:
    os.kill(pid, signal.SIGSEGV)


def test_a_process_forbids_cores_of_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, preexec_fn=allow, check=True
    )
    assert done.stdout.split() == ["0", "0"]


def test_it_is_a_setting() -> None:
    assert not load_config({}, {}).core_dumps
    assert load_config({"core_dumps": True}, {}).core_dumps
    assert load_config({}, {"UMA_CORE_DUMPS": "1"}).core_dumps


@linux
@pytest.mark.parametrize("asked", [False, True])
def test_an_engine_that_crashes(place: Path, asked: bool) -> None:
    """The limit is lifted from outside again: the engine's own word has to do."""
    patch = partial(working_folder, folder=str(place))
    with allowed():
        engine = DrivenEngine(patch=patch, fresh=True, probe=False, core_dumps=asked)
    try:
        assert soft_limit(engine.process.pid) == ("0" if not asked else soft_limit_of_all())
        hard = resource.prlimit(engine.process.pid, resource.RLIMIT_CORE)[1]
        resource.prlimit(engine.process.pid, resource.RLIMIT_CORE, (hard, hard))
        crash(engine.process.pid)
        engine.process.wait(60)
    finally:
        assert engine.close() == -signal.SIGSEGV
    assert bool(cores(place)) is asked


@linux
@pytest.mark.parametrize("asked", [False, True])
def test_a_daemon_that_crashes(tmp_path: Path, place: Path, asked: bool) -> None:
    """The engine has the front's limit from its first moment on."""

    def prepare() -> None:
        allow()
        os.chdir(place)

    daemon = DaemonProcess(tmp_path, preexec=prepare, core_dumps=asked)
    limits = {soft_limit(pid) for pid in (daemon.process.pid, daemon.engine_pid())}
    assert limits == {"0" if not asked else soft_limit_of_all()}
    hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_CORE)[1]
    resource.prlimit(daemon.process.pid, resource.RLIMIT_CORE, (hard, hard))
    crash(daemon.process.pid)
    daemon.expected = -signal.SIGSEGV
    daemon.wait()
    eventually(lambda: not any(p.is_running() for p in daemon.seen.values()))
    for name in (daemon.path, daemon.path + ".lock"):
        os.unlink(name)
    assert bool(cores(place)) is asked


def soft_limit_of_all() -> str:
    """What a process is left with that allows all that it may."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
