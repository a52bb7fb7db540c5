"""From ``git clone`` to streamed tokens with the real Makefile and a fresh virtual environment.

libllama comes from the cache, as on any machine where one clone was built before; building it is
tests/unit/test_build_llama.py's concern, and that of the first ``make`` on a bare machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.docs_runner import default_interrupt
from tests.support.installed import INSTALL_S, environment_without, some_build
from tests.support.package_index import no_index_reachable
from umaserve.llama import builds

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 120)]


@dataclass
class Clone:
    path: Path
    socket: str
    environment: dict[str, str]
    first: str = ""  # what the first `make run` printed

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", *words],
            cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S,
        )  # fmt: skip

    def program(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path / ".venv/bin" / name), *words],
            cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=START_S,
        )  # fmt: skip


class Running:
    """``make run`` until the line that says that it serves; ends it as Ctrl-C does."""

    def __init__(self, clone: Clone, log: Path, within_s: float = START_S) -> None:
        self.clone, self.log = clone, log
        began = time.monotonic()
        with log.open("wb") as out:
            self.make = subprocess.Popen(
                ["make", "run", f"ARGS=--socket {clone.socket} --dashboard off"],
                # the usual port may be another's
                cwd=clone.path, env=clone.environment | {"UMA_HTTP": "127.0.0.1:0"},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                preexec_fn=default_interrupt,
            )  # fmt: skip
        try:
            while "serving " not in self.text:
                assert self.make.poll() is None, self.text
                assert time.monotonic() < began + within_s, self.text
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise
        self.seconds = time.monotonic() - began

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8")

    def interrupt(self) -> int:
        """SIGINT to the daemon, which `make` waits for; the status of `make`."""
        daemon = int(Path(self.clone.socket + ".lock").read_text())
        family = psutil.Process(self.make.pid).children(recursive=True)
        assert daemon in [process.pid for process in family]
        os.kill(daemon, signal.SIGINT)
        status = self.make.wait(START_S)
        psutil.wait_procs(family, timeout=START_S)
        assert not [process for process in family if process.is_running()]
        return status

    def kill(self) -> None:
        if self.make.poll() is None:
            os.killpg(self.make.pid, signal.SIGKILL)
            self.make.wait()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone in which `make run` has served once: it installs packages, which is the slow part."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this copy of the project is no git clone that could be cloned again")
    build = some_build()
    directory = tmp_path_factory.mktemp("fresh")
    path = directory / "umaserve"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(path)], check=True)
    # of a `make test` around this one, and of its virtual environment, nothing gets through
    environment = {
        **environment_without("MAKE", "MFLAGS", "ARGS"),
        "PYTHON": sys.executable,
        "UMA_CACHE_DIR": str(builds.cache_root()),
        builds.BUILD_VARIABLE: build.key,
        "UMA_THREADS": "1",
        "UMA_STATE_DIR": str(directory / "state"),  # whoever runs this may have chosen a model
    }
    clone = Clone(path, str(directory / "u.sock"), environment)
    try:
        first = Running(clone, directory / "first.log", INSTALL_S)
    except AssertionError as error:
        if no_index_reachable(str(error)):
            pytest.skip("no package index can be reached, so nothing can be installed")
        raise
    clone.first = first.text
    assert first.interrupt() == 0
    return clone


@pytest.fixture
def running(clone: Clone, tmp_path: Path) -> Iterator[Running]:
    started = Running(clone, tmp_path / "make.log")
    yield started
    started.kill()


def test_the_first_make_run_tells_its_steps_in_few_lines(clone: Clone) -> None:
    lines = clone.first.splitlines()
    (serving,) = (number for number, line in enumerate(lines) if "serving " in line)
    print(clone.first)  # shown by `pytest -rP`
    assert serving <= 15
    assert "details: .venv/make-run.log" in lines[0]
    told = "\n".join(lines[:serving])
    steps = ("1 of 6: virtual environment", "2 of 6: Python packages", "6 of 6: the model")
    assert all(step in told for step in steps)
    log = (clone.path / ".venv/make-run.log").read_text("utf-8")
    assert "Successfully installed" in log and "Successfully" not in told


def test_make_run_serves_and_uma_cli_streams(clone: Clone, running: Running) -> None:
    answer = clone.program(
        "uma-cli", "-p", "def fibonacci(n):", "--max-tokens", "40", "--temp", "0",
        "--socket", clone.socket,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "def fibonacci(n):" in answer.stdout
    events = clone.program(
        "uma-cli", "-p", "import", "--max-tokens", "3", "--json", "--socket", clone.socket
    ).stdout
    assert events.count('"event":"token"') >= 1
    assert running.interrupt() == 0
    assert not os.path.lexists(clone.socket)
    assert "Traceback" not in running.text


def test_a_second_make_run_has_nothing_to_do(clone: Clone, running: Running) -> None:
    # shown by `pytest -rP`
    print(f"serving {running.seconds:.1f} s after `make run`")
    lines = running.text.splitlines()
    usual = ("serving ", "loading ", " answers ", "real models for this machine: ")
    assert [line for line in lines if not any(word in line for word in usual)] == []
    assert "and http://127.0.0.1:" in running.text
    assert running.interrupt() == 0


def test_make_test_fetches_pytest_and_runs_it(clone: Clone) -> None:
    assert clone.program("python", "-c", "import pytest").returncode != 0, "nothing ran needs it"
    ran = clone.make("test", "ARGS=tests/engine/test_kv_cells.py -q")
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_make_help_lists_the_targets(clone: Clone) -> None:
    text = clone.make("help").stdout
    for target in ("run", "test", "bench", "lint", "clean"):
        assert f"make {target} " in text


def test_make_lint_and_bench_run_what_they_say(clone: Clone) -> None:
    """Their recipes only: lint is a CI step of its own, and benchmarks do not belong in a test."""
    lint = clone.make("-n", "lint").stdout
    assert "ruff check" in lint and "mypy" in lint
    bench = clone.make("-n", "bench").stdout
    assert "--with-peers" in bench and "pytest benchmarks" in bench


def test_the_clone_stays_clean(clone: Clone) -> None:
    """What `make` leaves behind is ignored by git."""
    status = subprocess.run(
        ["git", "status", "--short"], cwd=clone.path, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""
