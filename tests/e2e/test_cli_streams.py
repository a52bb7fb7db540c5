"""The commands where standard output or standard error is closed, full, or gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fixtures.commands import TIMEOUT, environment
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.server_harness import eventually
from umaserve.cli import COMMANDS
from umaserve.client import Client

TALKING = {
    "generate": ["generate", "-p", "one two"],
    "generate, long": ["generate", "-p", "word " * 5000],
    "generate as JSON": ["generate", "-p", "one two", "--json"],
    "metrics": ["metrics"],
    "metrics as JSON": ["metrics", "--json"],
    "cache": ["cache"],
    "cache as JSON": ["cache", "--json"],
    "load": ["load", "/tmp/m.gguf"],
    "unload": ["unload"],
    "priority": ["priority", "a", "background"],
    "top": ["top", "--once"],
    "doctor": ["doctor"],
    "config": ["serve", "--print-config"],
    "version": ["--version"],
    "help": ["--help"],
    # `build` has the parser of a script of its own, which keeps quiet
    **{f"help of {name}": [name, "--help"] for name in COMMANDS if name != "build"},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with FakeDaemon(str(tmp_path_factory.mktemp("d") / "d.sock")) as daemon:
        yield daemon


def close(*fds: int) -> Callable[[], None]:
    def preexec() -> None:
        for fd in fds:
            os.close(fd)

    return preexec


def run(
    daemon: FakeDaemon, words: list[str], preexec: Callable[[], None] | None, **streams: object
) -> subprocess.CompletedProcess:
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        [sys.executable, "-m", "umaserve", *words],
        stdin=subprocess.DEVNULL,
        env=environment(daemon),
        preexec_fn=preexec,
        timeout=TIMEOUT,
        text=True,
        **streams,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("words", TALKING.values(), ids=TALKING)
def test_standard_output_is_closed(daemon: FakeDaemon, words: list[str]) -> None:
    done = run(daemon, words, close(1))
    said = done.stderr.splitlines()
    assert said[-1].endswith("output cannot be written: Bad file descriptor")
    assert done.stderr.count("cannot be written") == 1
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("words", TALKING.values(), ids=TALKING)
def test_standard_output_is_full(daemon: FakeDaemon, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(daemon, words, None, stdout=full)
    said = done.stderr.splitlines()
    assert said[-1].endswith("output cannot be written: No space left on device")
    assert done.stderr.count("cannot be written") == 1
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("fds", [(2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("words", [["generate", "-p", "one two"], ["metrics"], ["--help"]])
def test_standard_error_is_closed_too(
    daemon: FakeDaemon, words: list[str], fds: tuple[int, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with out.open("w") as file:
        done = run(daemon, words, close(*fds), stdout=file)
    assert done.returncode == (1 if 1 in fds else 0)
    assert bool(out.read_text()) == (1 not in fds)


@pytest.mark.parametrize("words", [["generate", "-p", "fail"], ["no-command"], ["--no-flag"]])
def test_an_error_that_nobody_can_be_told(daemon: FakeDaemon, words: list[str]) -> None:
    assert run(daemon, words, close(2)).returncode == 2
    with open("/dev/full", "w") as full:
        assert run(daemon, words, None, stderr=full).returncode == 2


def test_a_daemon_whose_dashboard_nobody_sees_ends_in_good_order(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "--dashboard", "on", "--socket", path],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=close(1),
    )
    with child:
        try:
            eventually(lambda: os.path.exists(path))
            with Client(path) as client:
                client.complete("x", max_tokens=1)
            time.sleep(0.5)  # a screen or two
        finally:
            child.terminate()
        _, err = child.communicate(timeout=TIMEOUT)
    assert (child.returncode, b"Traceback" in err) == (0, False), err


def test_a_prompt_from_standard_input_that_is_closed_is_empty(daemon: FakeDaemon) -> None:
    done = run(daemon, ["generate"], close(0))
    assert (done.returncode, "the prompt is empty" in done.stderr) == (2, True)
    assert run(daemon, ["chat"], close(0)).returncode == 0
