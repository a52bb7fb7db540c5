"""Who listens at the socket is asked before the first byte is sent; and where clients look."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.support.fixtures.commands import run
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.strangers import LISTEN, NAMED, only_root, open_folder, somebody_else, stranger
from umaserve.bench.load import Load
from umaserve.bench.target import daemon_at
from umaserve.cli.doctor.http import look_at_http
from umaserve.client import Client, ConnectionFailed, OtherUser, TrioClient
from umaserve.client import connect as where
from umaserve.client.connect import socket_path, unreachable
from umaserve.config import Config
from umaserve.system.peer import Peer, is_own, user_name

__all__ = ["somebody_else"]


def plain(path: str) -> None:
    with Client(path, timeout=20) as client:
        client.complete("private")


def under_trio(path: str) -> None:
    async def main() -> None:
        with trio.fail_after(20):
            async with TrioClient(path) as client:
                await client.complete("private")

    trio.run(main)


def benchmark(path: str) -> None:
    with Load(path, lambda words: "private", lambda load: None) as load:
        load.watch()


CLIENTS = [plain, under_trio, benchmark]


@only_root
@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
def test_a_stranger_gets_nothing(ask: Callable[[str], None]) -> None:
    with open_folder() as folder:
        path = str(folder / "uma.sock")
        with stranger(LISTEN, path) as child:
            with pytest.raises(OtherUser) as refused:
                ask(path)
            assert child.stdout is not None and child.stdout.readline() == "b''\n"
    text = str(refused.value)
    assert text.startswith(f"{path} is a socket of nobody {NAMED}, not yours; nothing was sent")
    assert "umaserve --socket" in text


@only_root
@pytest.mark.parametrize(
    "words",
    [["generate", "-p", "private"], ["chat"], ["top", "--once"], ["metrics"], ["load", "m.gguf"]],
    ids=lambda words: words[0],
)
def test_commands_say_whose_it_is(words: list[str]) -> None:
    with open_folder() as folder:
        path = str(folder / "uma.sock")
        with stranger(LISTEN, path) as child:
            done = run(*words, "--socket", path, stdin="private\n")
            assert child.stdout is not None and child.stdout.readline() == "b''\n"
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path} is a socket of nobody {NAMED}, not yours" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@only_root
def test_doctor_and_bench_say_it_too(tmp_path: Path) -> None:
    with open_folder() as folder:
        path = str(folder / "uma.sock")
        with stranger(LISTEN, path) as child:
            out = run("doctor", "--socket", path, UMA_CACHE_DIR=str(tmp_path / "none")).stdout
            http = look_at_http(Config(http=f"unix:{path}"))
            said = daemon_at(path)
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(3)] == 3 * ["b''\n"]
    whose = f"{path} is a socket of nobody {NAMED}, not yours"
    assert f"missing socket     {whose}" in out
    assert said == whose
    assert http[0] == "missing" and http[1] == whose and "--http" in http[2]


@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
def test_anybody_but_this_user_is_a_stranger(
    somebody_else: None, tmp_path: Path, ask: Callable[[str], None]
) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        with pytest.raises(OtherUser, match="not yours; nothing was sent"):
            ask(daemon.path)
        daemon.wait_for(lambda: daemon.disconnects == 1)
        assert daemon.seen == []


def test_whose_peers_are_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert is_own(1000)
    assert is_own(Peer().uid)  # a system that does not tell
    assert not is_own(0) and not is_own(1001) and not is_own(65534)
    assert user_name(0) == "root (uid 0)"
    assert user_name(4_000_000_001) == "uid 4000000001"


def test_a_peer_that_nobody_knows_is_taken(
    somebody_else: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, "peer_of", lambda sock: Peer())
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        plain(daemon.path)


def test_a_peer_that_has_gone_is_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_connected(sock: socket.socket) -> Peer:
        raise OSError(57, "Socket is not connected")

    monkeypatch.setattr(where, "peer_of", not_connected)
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        for ask in CLIENTS:
            with pytest.raises(ConnectionFailed, match="Socket is not connected"):
                ask(daemon.path)


# --- where clients look --------------------------------------------------------------------------


def test_where_clients_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "uma.sock"
    monkeypatch.delenv("UMA_SOCK", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path() == "/tmp/uma.sock"
    private.write_text("no socket")
    assert socket_path() == "/tmp/uma.sock"
    private.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(private))
    assert socket_path() == str(private)
    for unusable in ("", "relative", str(tmp_path / "none")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        assert socket_path() == "/tmp/uma.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("UMA_SOCK", "/elsewhere")
    assert socket_path() == "/elsewhere"
    assert socket_path("/given") == "/given"


def test_a_command_finds_the_socket_of_a_service(tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "uma.sock")) as daemon:
        done = run("generate", "-p", "one two", XDG_RUNTIME_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "one two ")
        assert len(daemon.seen) == 1


def test_doctor_says_where_clients_look(tmp_path: Path) -> None:
    private = {"XDG_RUNTIME_DIR": str(tmp_path), "UMA_CACHE_DIR": str(tmp_path / "none")}
    with FakeDaemon(str(tmp_path / "uma.sock")) as daemon:
        assert f"they look at {daemon.path} first" in run("doctor", **private).stdout
        out = run("doctor", "--socket", daemon.path, **private).stdout
        assert "a daemon runs" in out and "look at" not in out
    assert "look at" not in run("doctor", **private).stdout


def test_what_to_start_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """``umaserve`` alone listens in ``/tmp``, or at ``UMA_SOCK``: not where a client looked."""
    refused = ConnectionRefusedError(111, "Connection refused")
    monkeypatch.delenv("UMA_SOCK", raising=False)
    assert "start one with `umaserve` or" in str(unreachable("/tmp/uma.sock", refused))
    assert "start one with `umaserve --socket /run/x` or" in str(unreachable("/run/x", refused))
    monkeypatch.setenv("UMA_SOCK", "/run/x")
    assert "start one with `umaserve` or" in str(unreachable("/run/x", refused))


def test_a_socket_that_is_closed_to_us(somebody_else: None, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
    denied = PermissionError(13, "Permission denied")
    whose = user_name(os.stat(path).st_uid)
    said = str(unreachable(path, denied))
    assert said.startswith(f"{path} is a socket of {whose}, not yours; set UMA")
