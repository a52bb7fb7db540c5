"""Processes that begin with signals ignored or blocked, and with descriptors closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import build_llama
from tests.support.fake_engine import answer
from tests.support.fixtures.commands import TIMEOUT, environment
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.server_harness import ROOT, DaemonProcess, eventually
from umaserve.dashboard import Dashboard, View

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def ignore_all() -> None:
    for number in (*ENDING, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def block_all() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGCHLD})


def close_all() -> None:
    for fd in (0, 1, 2):
        os.close(fd)


@pytest.mark.parametrize("inherited", [ignore_all, block_all])
def test_processes_that_tests_start_hear_signals(inherited: Callable[[], None]) -> None:
    child = "import time; print('here', flush=True); time.sleep(60)"
    code = f"""
import signal, subprocess, sys
from tests.support.fixtures.signals import let_children_hear
let_children_hear()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    command = [sys.executable, "-c", {child!r}]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(number)
    try:
        assert child.wait(10) == -number
    finally:
        child.kill()
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, preexec_fn=inherited, cwd=ROOT, timeout=60
    )


def test_this_process_has_called_that() -> None:
    assert not [n for n in ENDING if signal.getsignal(n) == signal.SIG_IGN]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & ENDING


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_was_blocked_stops_the_daemon(tmp_path: Path, number: int) -> None:
    with DaemonProcess(tmp_path, preexec=block_all) as daemon:
        daemon.process.send_signal(number)
        assert daemon.wait() == 0
        assert signal.Signals(number).name in daemon.log


def test_an_engine_that_dies_is_noticed_where_ended_children_were_ignored(tmp_path: Path) -> None:
    def ignore_children() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with DaemonProcess(tmp_path, preexec=ignore_children) as daemon, daemon.client() as client:
        result = client.generate("[abort-once@3]", max_tokens=6)
        assert bytes(result.tokens) == answer("[abort-once@3]", 6)
        assert "SIGABRT" in daemon.log


def test_what_is_ignored_is_said_with_what_stops_it(tmp_path: Path) -> None:
    def as_in_the_background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with DaemonProcess(tmp_path, preexec=as_in_the_background) as daemon:
        said = "SIGINT is ignored here, as it was when this started; SIGTERM stops the daemon"
        assert said in daemon.log
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.serving()


def test_a_daemon_that_no_signal_stops_warns(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, preexec=ignore_all) as daemon:
        assert "warn: SIGINT and SIGTERM are ignored here" in daemon.log
        assert f"only SIGKILL stops the daemon (process {daemon.process.pid})" in daemon.log
        daemon.process.kill()
        daemon.expected = -signal.SIGKILL
        daemon.wait()
        eventually(lambda: not any(p.is_running() for p in daemon.seen.values()))
        for name in (daemon.path, daemon.path + ".lock"):
            os.unlink(name)


def test_a_daemon_without_standard_streams_serves(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, preexec=close_all) as daemon, daemon.client() as client:
        links = [os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}") for fd in (0, 1, 2)]
        assert links == [os.devnull] * 3
        assert len(client.generate("[abort-once@3]", max_tokens=6).tokens) == 6


def test_a_daemon_in_a_directory_that_is_gone_serves(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def go_there() -> None:
        os.chdir(gone)
        os.rmdir(gone)

    with DaemonProcess(tmp_path, preexec=go_there) as daemon, daemon.client() as client:
        assert len(client.generate("x", max_tokens=6).tokens) == 6


@pytest.mark.parametrize("mask", [0, 0o777])
def test_the_socket_is_the_users_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with DaemonProcess(tmp_path, preexec=lambda: os.umask(mask) and None) as daemon:
        assert os.stat(daemon.path).st_mode & 0o777 == 0o600
        assert os.stat(daemon.path + ".lock").st_mode & 0o077 == 0


@pytest.mark.parametrize("inherited", [block_all, ignore_all])
def test_an_interrupt_reaches_a_command_unless_it_is_ignored(
    tmp_path: Path, inherited: Callable[[], None]
) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        child = subprocess.Popen(
            [sys.executable, "-m", "umaserve", "generate", "-p", "slow"],
            stdout=subprocess.PIPE,
            env=environment(daemon),
            preexec_fn=inherited,
        )
        assert child.stdout is not None and child.stdout.read(5) == b"slow "
        child.send_signal(signal.SIGINT)
        if inherited is block_all:
            assert child.wait(TIMEOUT) == 130
        else:
            assert child.stdout.read(5) == b"slow "
            child.kill()
            child.wait()
        child.stdout.close()


@pytest.mark.parametrize(
    ("before", "raised"), [(signal.SIG_IGN, signal.SIGTERM), (signal.SIG_DFL, signal.SIGINT)]
)
def test_the_key_that_ends_a_daemon_does_so_where_interrupts_are_ignored(
    monkeypatch: pytest.MonkeyPatch, before: signal.Handlers, raised: int
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda _: before)
    monkeypatch.setattr(signal, "raise_signal", sent.append)
    dashboard = Dashboard.__new__(Dashboard)
    dashboard.view = View(local=True)
    dashboard._quit()
    assert sent == [raised]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_does_not_hear_what_is_ignored(number: signal.Signals) -> None:
    was = signal.signal(number, signal.SIG_IGN)
    try:
        with build_llama._interruptible():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, was)
