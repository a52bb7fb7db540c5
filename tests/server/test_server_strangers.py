"""What another user put where the daemon's socket and its lock belong: named, and not believed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server_harness import DaemonProcess
from tests.support.strangers import (
    HOLD,
    LISTEN,
    NAMED,
    only_root,
    open_folder,
    somebody_else,
    stranger,
)
from umaserve.server.clients.listener import ClaimedSocket, SocketError
from umaserve.system.peer import user_name

__all__ = ["somebody_else"]

OWNER = user_name(os.geteuid())


def refused(path: Path) -> str:
    with pytest.raises(SocketError) as error, ClaimedSocket(str(path)):
        pass
    return str(error.value)


@only_root
@pytest.mark.parametrize("folder_mode", [0o777, 0o1777], ids=["open", "sticky"])
@pytest.mark.parametrize("mode", [0o666, 0o600], ids=["everybody's", "closed"])
def test_a_lock_of_another_user_is_not_believed(folder_mode: int, mode: int) -> None:
    with open_folder(folder_mode) as folder:
        path = folder / "uma.sock"
        with stranger(HOLD, f"{path}.lock", mode):
            text = refused(path)
        assert f"{path}.lock" in text and f"nobody {NAMED}" in text and "--socket" in text
        assert "process" not in text
        assert not path.exists()
        assert Path(f"{path}.lock").read_text() == "1"  # held by nobody now, and still his
        assert f"nobody {NAMED}" in refused(path)


@only_root
def test_a_socket_of_another_user_is_named() -> None:
    with open_folder() as folder:
        path = folder / "uma.sock"
        with stranger(LISTEN, str(path)) as child:
            text = refused(path)
        assert f"in use by process {child.pid} of nobody {NAMED}; choose another path" in text


@only_root
def test_a_daemon_says_so_and_ends() -> None:
    with open_folder() as folder:
        path = str(folder / "uma.sock")
        with stranger(HOLD, path + ".lock"):
            daemon = DaemonProcess(folder, socket=path, wait=False)
            assert daemon.wait() == 1
        assert f"nobody {NAMED}" in daemon.log and "Traceback" not in daemon.log


def test_files_of_anybody_else_are_not_believed(somebody_else: None, tmp_path: Path) -> None:
    path = tmp_path / "uma.sock"
    lock = Path(f"{path}.lock")
    lock.write_text("1")
    assert f"{lock} belongs to {OWNER}, who is not this user" in refused(path)
    assert lock.read_text() == "1"


def test_a_listener_of_anybody_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uma.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert f"in use by process {os.getpid()}; stop that daemon" in refused(path)
        real = os.geteuid()
        monkeypatch.setattr(ClaimedSocket, "_lock", lambda self: os.open(os.devnull, os.O_RDONLY))
        monkeypatch.setattr(os, "geteuid", lambda: real + 1)
        text = refused(path)
        assert f"in use by process {os.getpid()} of {OWNER}; choose another path" in text


def named_pipe(lock: Path, other: Path) -> None:
    os.mkfifo(lock)


def listening(lock: Path, other: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(lock))


@pytest.mark.parametrize(
    "make",
    [named_pipe, listening, lambda lock, _: lock.mkdir(),
     lambda lock, other: lock.symlink_to(other), lambda lock, other: lock.hardlink_to(other)],
    ids=["named pipe", "socket", "folder", "link", "second name"],
)  # fmt: skip
def test_a_lock_that_is_no_file_of_its_own(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """A named pipe would be waited for, and another file of ours would be emptied."""
    path, other = tmp_path / "uma.sock", tmp_path / "precious"
    other.write_text("precious")
    make(Path(f"{path}.lock"), other)
    text = refused(path)
    assert f"{path}.lock is " in text and "left alone" in text and "--socket" in text
    assert os.path.lexists(f"{path}.lock") and other.read_text() == "precious"
