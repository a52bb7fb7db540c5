"""Who is at the other end of a socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from umaserve.system.peer import Peer, peer_of


def test_the_peer_is_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    if peer.pid:
        assert peer.app == Peer(peer.pid).app != ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not cut names")
@pytest.mark.parametrize("name", ["short", "a-name-of-more-than-fifteen-bytes"])
def test_a_name_is_that_of_the_program_as_a_whole(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin and process.stdout
        process.stdin.write(b"it runs\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"it runs\n"
        assert Peer(process.pid).app == name
    finally:
        process.communicate()


def test_nobody_has_no_name() -> None:
    assert Peer(0).app in ("", "pid 0")
