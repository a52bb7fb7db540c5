"""``umaserve top`` on a pseudo-terminal, against a stand-in daemon and faults."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.support.fixtures.commands import environment, outcome, run
from tests.support.fixtures.fake_daemon import FakeDaemon

TIMEOUT_S = 40.0

CRASH = """
import trio
from umaserve.dashboard import Dashboard

class Feed:
    async def run(self, interval_s, show, lost):
        show({"metrics": {"model": "crash-test"}})
        await trio.sleep(0.5)
        raise RuntimeError("a defect")

trio.run(Dashboard(Feed()).run)
"""
HANGUP = """
import os, sys, trio
from umaserve.dashboard import Dashboard

class Feed:
    async def run(self, interval_s, show, lost):
        while True:
            show({"metrics": {"model": "hang-up", "uptime_s": trio.current_time()}})
            await trio.sleep(0.01)

trio.run(Dashboard(Feed()).run)
open(sys.argv[1], "w").write("went on")
"""


def hear_signals() -> None:
    """Undo what nohup, or a shell that runs the tests in the background, had them inherit."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Tty:
    """A process on a pseudo-terminal; what it wrote in ``seen``."""

    def __init__(self, *words: str, **extra: str) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(self.master)
        self.child = subprocess.Popen(
            [sys.executable, *words],
            stdin=slave, stdout=slave, stderr=slave,
            env=environment(None, **{"TERM": "xterm", **extra}), preexec_fn=hear_signals,
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def __enter__(self) -> Tty:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        if self.master >= 0:
            os.close(self.master)

    def press(self, data: bytes) -> None:
        os.write(self.master, data)

    def until(self, pattern: bytes) -> None:
        """Read until what is new matches."""
        new, limit = b"", time.monotonic() + TIMEOUT_S
        while not re.search(pattern, new):
            assert time.monotonic() < limit, f"{pattern!r} did not come: {new[-900:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    new += os.read(self.master, 65536)
                except OSError:
                    break
        self.seen += new
        assert re.search(pattern, new), f"{pattern!r} did not come: {new[-900:]!r}"

    def given_back(self) -> None:
        assert self.seen.count(b"\x1b[?1049h") == self.seen.count(b"\x1b[?1049l") == 1
        assert self.seen.rindex(b"\x1b[?25h") > self.seen.rindex(b"\x1b[?25l")
        assert termios.tcgetattr(self.master) == self.before


def top(path: str, *flags: str) -> tuple[str, ...]:
    return ("-m", "umaserve", "top", "--socket", path, "--interval", "0.05", *flags)


@pytest.fixture
def path(tmp_path) -> Iterator[str]:
    yield str(tmp_path / "d.sock")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_daemon_that_restarts_is_found_again(path, number):
    """And the terminal is given back when a signal ends it."""
    with Tty(*top(path)) as refused:
        refused.until(rb"no daemon at .*; start one with")
        assert refused.child.wait(TIMEOUT_S) == 2 and b"\x1b[?1049h" not in refused.seen
    with FakeDaemon(path):
        tty = Tty(*top(path))
        tty.until(b"fake")
    with tty:
        tty.until(b"waiting for a daemon")
        with FakeDaemon(path) as again:
            again.wait_for(lambda: len(again.seen) > 0)
            tty.until(b"fake")
            tty.child.send_signal(number)
            tty.until(rb"\x1b\[\?1049l")
            assert tty.child.wait(TIMEOUT_S) == 128 + number
        tty.given_back()


def test_q_leaves_while_there_is_no_daemon(path):
    with FakeDaemon(path):
        tty = Tty(*top(path))
        tty.until(b"fake")
    with tty:
        tty.until(b"waiting for a daemon")
        tty.press(b"jjpcc?\x1b[A\x1b")
        tty.press(b"q")
        tty.until(rb"\x1b\[\?1049l")
        assert tty.child.wait(TIMEOUT_S) == 0
        tty.given_back()


def test_keys_are_not_echoed_and_ctrl_s_does_not_stop_it(path):
    with FakeDaemon(path), Tty(*top(path)) as tty:
        tty.until(b"fake")
        tty.press(b"\x13zzz?")
        tty.until(b"promote it")
        assert b"zzz" not in tty.seen and b"^S" not in tty.seen
        tty.press(b"q")
        tty.until(rb"\x1b\[\?1049l")
        assert tty.child.wait(TIMEOUT_S) == 0
        tty.given_back()


def test_a_defect_leaves_the_terminal_as_it_was():
    with Tty("-c", CRASH) as tty:
        tty.until(b"crash-test")
        tty.until(b"RuntimeError: a defect")
        assert tty.child.wait(TIMEOUT_S) == 1
        tty.given_back()
        # and one can read why
        assert tty.seen.rindex(b"a defect") > tty.seen.rindex(b"\x1b[?1049l")


def test_a_terminal_that_goes_away_ends_only_the_dashboard(tmp_path):
    """As when the window of a daemon's own dashboard is closed under ``nohup``."""
    done = tmp_path / "done"
    with Tty("-c", HANGUP, str(done)) as tty:
        tty.until(b"hang-up")
        os.close(tty.master)
        tty.master = -1
        assert tty.child.wait(TIMEOUT_S) == 0
        assert done.read_text() == "went on"


def test_a_dumb_terminal_and_a_pipe_get_lines(path):
    with FakeDaemon(path), Tty(*top(path), TERM="dumb") as tty:
        tty.until(rb"\d\d:\d\d:\d\d fake: - tok/s, - active")
        tty.child.send_signal(signal.SIGINT)
        assert tty.child.wait(TIMEOUT_S) == 130
        assert b"\x1b" not in tty.seen and termios.tcgetattr(tty.master) == tty.before
    with FakeDaemon(path):
        child = subprocess.Popen(
            [sys.executable, *top(path)], stdout=subprocess.PIPE, env=environment(None)
        )
        assert child.stdout is not None
        assert re.match(rb"\d\d:\d\d:\d\d fake: ", child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) == 143
        child.stdout.close()


def attached(path: str, *flags: str, to: int) -> subprocess.Popen[bytes]:
    """The dashboard, writing into a descriptor that is no terminal."""
    words = [sys.executable, *top(path), *flags]
    return subprocess.Popen(words, stdout=to, stderr=subprocess.PIPE, env=environment(None))


def test_a_pipe_that_nobody_reads_any_more_is_the_end(path):
    """As in ``umaserve top | head -1``: no complaint."""
    with FakeDaemon(path):
        read, write = os.pipe()
        child = attached(path, to=write)
        os.close(write)
        assert os.read(read, 1)
        os.close(read)
        assert child.wait(TIMEOUT_S) == 0
        assert child.stderr is not None and child.stderr.read() == b""
        child.stderr.close()


def test_a_pipe_without_reader_ends_only_the_dashboard(tmp_path):
    """As when the reader of a daemon's own output goes away."""
    done, (read, write) = tmp_path / "done", os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-c", HANGUP, str(done)], stdout=write, stderr=subprocess.DEVNULL,
        env=environment(None),
    ) as child:  # fmt: skip
        os.close(write)
        child.wait(TIMEOUT_S)
    assert done.read_text() == "went on"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("flags", [(), ("--once",)])
def test_output_that_cannot_be_written_is_an_error(path, flags):
    with FakeDaemon(path), open("/dev/full", "wb") as full:
        child = attached(path, *flags, to=full.fileno())
        assert child.wait(TIMEOUT_S) == 1
        assert child.stderr is not None
        assert child.stderr.read() == (
            b"error: the output cannot be written: No space left on device\n"
        )
        child.stderr.close()


def test_a_picture_that_cannot_be_written_is_an_error(path, tmp_path):
    picture = tmp_path / "no" / "such.svg"
    with FakeDaemon(path):
        done = run("top", "--once", "--svg", str(picture), "--socket", path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"error: {picture} cannot be written: No such file or directory" in done.stderr


def test_once_as_text_and_as_a_picture(path, tmp_path):
    with FakeDaemon(path):
        done = run("top", "--once", "--socket", path)
        assert done.returncode == 0 and "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert lines[0].startswith(" Idle: nobody asks") and lines[1].startswith(" fake · ")
        assert max(map(len, lines)) <= 80
        picture = tmp_path / "top.svg"
        done = run("top", "--once", "--size", "100x30", "--svg", str(picture), "--socket", path)
        assert outcome(done) == (0, "", "") and "fake" in picture.read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--once", "--size", "wide"), "no size; columns x lines"),
        (("--once", "--size", "0x5"), "no size"),
        (("--svg", "x.svg"), "--svg and --size go with --once"),
        (("--intervall", "1"), "did you mean --interval?"),
    ],
)
def test_flags_that_make_no_sense(path, flags, words):
    done = run("top", "--socket", path, *flags)
    assert done.returncode == 2 and words in done.stderr
