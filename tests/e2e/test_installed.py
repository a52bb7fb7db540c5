"""A wheel by uv and a source distribution by pipx, where there is no clone: they serve, and write
into the user's cache alone.

libllama and the compiled samplers come from the cache of this machine; the binding is compiled, as
at a first start.  Each package is installed once, so the tests of it run in this order.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs_runner import default_interrupt
from tests.support.installed import (
    ANSWER_S,
    INSTALL_S,
    Installation,
    give_library,
    install,
    some_build,
)
from tests.support.made_packages import make_packages
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 300)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(
    request: pytest.FixtureRequest,
    packages: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Installation:
    build = some_build()
    made = install(packages[request.param], tmp_path_factory.mktemp(request.param) / "home")
    give_library(made, build)
    return made


@pytest.fixture
def served(installed: Installation, tmp_path: Path) -> Iterator[Installation]:
    """Its daemon, from a first start on."""
    before = installed.files()
    log = tmp_path / "log"
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
        "umaserve", "--socket", installed.socket, PATH=str(installed.bin),
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


def test_what_was_installed_goes_again(installed: Installation) -> None:
    assert (installed.bin / "umaserve").exists()
    subprocess.run(installed.remove, env=installed.environment, check=True, timeout=ANSWER_S)
    assert not [path for path in installed.home.rglob("umaserve*") if "none" not in path.parts
                and not path.is_relative_to(installed.home / ".cache")]  # fmt: skip
