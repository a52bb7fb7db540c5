"""Processes that fork have one thread, on every processor; a run without engines ends soon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import forks
from tests.support.engine_driver import DrivenEngine
from tests.support.server_harness import DaemonProcess, eventually
from tests.support.stuck import MOST_IN_A_ROW, InARow, not_started, stack_of

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only there are tests' engines forked")
def tasks(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")


@linux
def test_the_process_that_forks_engines_has_one_thread() -> None:
    with DrivenEngine() as engine:
        assert len(engine.run("x", max_tokens=2)) == 2
        if not isinstance(engine.process, forks.Forked):
            pytest.skip("engines are not forked: libllama here is an accelerator's")
        assert len(tasks(engine.process.pid)) > 1  # the engine has several
        assert len(tasks(forks._forker(forks.ENGINE).process.pid)) == 1


@linux
def test_the_process_that_forks_daemons_has_one_thread(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    assert len(tasks(forks._forker(forks.FRONT).process.pid)) == 1
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0


@linux
def test_the_children_of_a_forked_daemon_are_its_own(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        engine = psutil.Process(daemon.engine_pid())
        (gateway,) = [p for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())]
        assert engine.cmdline()[: len(forks.FAKE_ENGINE)] == forks.FAKE_ENGINE
        assert engine.ppid() == gateway.ppid() == daemon.process.pid
        front = psutil.Process(daemon.process.pid)
        (forker,) = [p for p in front.children() if p.name() == forks.NAME]
        assert len(tasks(forker.pid)) == 1
        engine.kill()  # the daemon hears how it ended
        eventually(lambda: daemon.engine_pid() != engine.pid, "another engine serves")
        assert "the engine died of SIGKILL" in daemon.log
    eventually(
        lambda: not forker.is_running() or forker.status() == psutil.STATUS_ZOMBIE,
        "the process that forked is gone",
    )


@linux
@pytest.mark.parametrize("module", [forks.ENGINE, forks.FRONT, forks.COMMAND])
def test_with_a_second_thread_it_refuses_to_fork(module: str, threaded: dict[str, str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        run = subprocess.run(
            [sys.executable, "-m", module, "--forks", str(theirs.fileno())], cwd=ROOT,
            env={**forks.forking_environment(), **threaded}, pass_fds=[theirs.fileno()],
            capture_output=True, text=True, check=False, timeout=50,
        )  # fmt: skip
    assert run.returncode == 1 and "a process of 2 threads must not fork" in run.stderr


@linux
def test_files_are_tried_in_forks_of_one_thread_alone(threaded: dict[str, str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.gguf_mutants", "--count", "1"], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **threaded},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert run.returncode == 1 and "a process of 2 threads must not fork" in run.stdout + run.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.fork()\n",
        "from os import fork\n\nfork()\n",
        "import subprocess\n\nsubprocess.Popen([], preexec_fn=print)\n",
        "import multiprocessing\n\nmultiprocessing.Process()\n",
        "from concurrent.futures import ProcessPoolExecutor\n\nProcessPoolExecutor()\n",
    ],
)
def test_the_lint_lets_nothing_in_the_product_fork(text: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename"]
    run = subprocess.run(
        [*command, str(ROOT / "umaserve" / "x.py"), "-"], input=text, cwd=ROOT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1 and ("TID251" in run.stdout or "PLW1509" in run.stdout), run.stdout


def test_nothing_in_the_product_runs_python_between_fork_and_exec() -> None:
    """The lint sees ``preexec_fn`` of ``Popen`` alone."""
    sources = [ROOT / "build_llama.py", *ROOT.glob("umaserve/**/*.py"), *ROOT.glob("bindings/*.py")]
    assert not [path for path in sources if "preexec_fn" in path.read_text("utf-8")]


def test_ten_tests_in_a_row_without_an_engine_end_the_run() -> None:
    count, said = InARow(), "EngineDidNotStart: no engine"
    for _ in range(MOST_IN_A_ROW - 1):
        assert count.why_to_stop("failed", said) == ""
    assert count.why_to_stop("passed", "") == ""
    assert not any(count.why_to_stop("failed", said) for _ in range(MOST_IN_A_ROW - 1))
    assert count.why_to_stop("failed", "assert 1 == 2") == ""
    assert not any(count.why_to_stop("failed", said) for _ in range(MOST_IN_A_ROW - 1))
    assert said in count.why_to_stop("failed", said)


@linux
def test_a_process_that_does_not_start_is_told_with_its_stack(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n")
    with subprocess.Popen(["sleep", "60"]) as process:
        told = str(not_started("it does not start", process.pid, log))
        assert "loading" in told and f"process {process.pid}:" in told
        assert "nanosleep" in stack_of(process.pid)
        process.kill()
