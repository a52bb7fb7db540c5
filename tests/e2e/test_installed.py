"""A wheel and a source distribution, installed where there is no clone: they serve, and write into
the user's cache alone.

libllama and the compiled samplers come from the cache of this machine; the binding is compiled, as
at a first start.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.docs_runner import default_interrupt
from tests.support.made_packages import make_packages
from tests.support.package_index import no_index_reachable
from tests.support.waiting import until
from umaserve.jit.cache import jit_cache_dir
from umaserve.llama import builds

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 900.0
ANSWER_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 300)]


@dataclass
class Installation:
    """An environment with one of the two installed, and a user's home with a cache in it."""

    venv: Path
    home: Path
    environment: dict[str, str]

    @property
    def socket(self) -> str:
        return str(self.home / "run" / "uma.sock")

    @property
    def build(self) -> Path:
        (found,) = (self.home / ".cache/umaserve/llama").iterdir()
        return found

    def command(self, *words: str) -> list[str]:
        return [str(self.venv / "bin" / words[0]), *words[1:]]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.home / "elsewhere", env={**self.environment, **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S,
        )  # fmt: skip

    def files(self) -> dict[str, float]:
        """Of the environment and of the home, without the cache; with the times of their change."""
        cache = self.home / ".cache/umaserve"
        return {
            str(path): path.lstat().st_mtime
            for top in (self.venv, self.home)
            for path in top.rglob("*")
            if not path.is_dir() and not path.is_relative_to(cache)
        }


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the locked packages, and nothing of this project."""
    path = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    done = subprocess.run(
        [path / "bin/python", "-m", "pip", "install", "-q", "--require-hashes",
         "--only-binary", ":all:", "-r", ROOT / "requirements.lock"],
        capture_output=True, text=True, timeout=INSTALL_S,
    )  # fmt: skip
    if done.returncode and no_index_reachable(done.stderr):
        pytest.skip("no package index can be reached, so nothing can be installed")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(params=["wheel", "sdist"])
def installed(
    request: pytest.FixtureRequest, packages: dict[str, Path], venv: Path, tmp_path: Path
) -> Installation:
    build = builds.select("cpu") or builds.select()
    if build is None:
        pytest.skip("no build of libllama is in the cache: run `make llama` first")
    subprocess.run(
        [venv / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-index",
         "--no-build-isolation", "--force-reinstall", packages[request.param]],
        check=True,
    )  # fmt: skip
    home = tmp_path / "home"
    for name in (".cache/umaserve/llama", ".cache/umaserve/jit", "elsewhere", "run", "tmp"):
        (home / name).mkdir(parents=True, mode=0o700)
    cache = home / ".cache/umaserve"
    shutil.copytree(build.path, cache / "llama" / build.key, symlinks=True)
    shutil.rmtree(cache / "llama" / build.key / "python", ignore_errors=True)
    if jit_cache_dir().exists():
        shutil.copytree(jit_cache_dir(), cache / "jit" / jit_cache_dir().name)
    others = ("UMA_", "NUMBA_", "PYTHON", "VIRTUAL_", "XDG_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    environment = {
        **kept, "HOME": str(home), "TMPDIR": str(home / "tmp"), "UMA_THREADS": "1",
        "XDG_RUNTIME_DIR": str(home / "run"),
    }  # fmt: skip
    return Installation(venv, home, environment)


@pytest.fixture
def served(installed: Installation) -> Iterator[Installation]:
    """Its daemon, from a first start on."""
    before = installed.files()
    log = installed.home.parent / "log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(
            installed.command("umaserve", "--socket", installed.socket, "--n-ctx", "512"),
            cwd=installed.home / "elsewhere", env=installed.environment, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, preexec_fn=default_interrupt,
        )  # fmt: skip
    try:
        until(lambda: daemon.poll() is not None or " serving " in log.read_text(), ANSWER_S)
        assert daemon.poll() is None, log.read_text()
        assert "Compiling the binding" in log.read_text()
        yield installed
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(ANSWER_S) == 0, log.read_text()
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()
    assert installed.files() == before, "something was written outside the cache"


def test_it_serves_answers_and_writes_into_the_cache_alone(served: Installation) -> None:
    # by the socket that clients look for
    answer = served.run("uma-cli", "--raw", "-p", "import", "--max-tokens", "3", "--json")
    assert answer.stdout.count('"event":"token"') == 3, answer.stderr
    said = served.run("umaserve", "generate", "-p", "What does os.path.join do?", "--temp", "0")
    assert "os.path.join(" in said.stdout, "a conversation: uma-chat runs"
    doctor = served.run("umaserve", "doctor", "--socket", served.socket)
    assert doctor.returncode == 0, doctor.stdout
    assert os.listdir(served.build / "python")


def test_what_to_type_is_there(installed: Installation) -> None:
    """No message names a script that only a clone has."""
    listed = installed.run("umaserve", "build", "--list").stdout
    assert listed.startswith("* ") and installed.build.name in listed
    none = installed.run("umaserve", "build", "--list", UMA_CACHE_DIR=str(installed.home / "none"))
    assert "make one with: umaserve build\n" in none.stdout
    assert "usage: umaserve build " in installed.run("umaserve", "build", "--help").stdout


def test_without_a_compiler_a_first_start_says_what_to_install(installed: Installation) -> None:
    empty = installed.home / "none"
    done = installed.run(
        "umaserve", "--socket", installed.socket, PATH=str(installed.venv / "bin"),
        UMA_CACHE_DIR=str(empty), CC="", CXX="",
    )  # fmt: skip
    assert done.returncode == 1
    assert "the first start builds libllama" in done.stderr
    assert "no C and no C++ compiler was found" in done.stderr
    assert "Traceback" not in done.stderr and not os.path.lexists(installed.socket)


def test_a_model_that_is_not_there_is_told_before_anything_is_built(
    installed: Installation,
) -> None:
    done = installed.run(
        "umaserve", "--model", "none.gguf", UMA_CACHE_DIR=str(installed.home / "none")
    )
    assert done.returncode == 1 and "none.gguf does not exist" in done.stderr
    assert "builds libllama" not in done.stderr
