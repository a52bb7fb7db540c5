"""The user at the other end of a TCP connection."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.strangers import UID, connected_stranger, only_root
from umaserve.system import tcp_peer
from umaserve.system.tcp_peer import NOBODY, UNTOLD, Look, TcpPeers, by_netlink, by_proc

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells users of TCP sockets")
LOOKS = pytest.mark.parametrize("look", [by_netlink, by_proc], ids=["netlink", "proc"])
HOSTS = pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])


@contextmanager
def listening(host: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if ":" in host and not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((host, 0))
        server.listen()
        yield server


@linux
@LOOKS
@HOSTS
def test_it_is_this_process(look: Look, host: str) -> None:
    with listening(host) as server, socket.create_connection(server.getsockname()[:2]) as client:
        ours, _ = server.accept()
        with ours:
            ends = ours.getpeername()[:2], ours.getsockname()[:2]
            assert look(*ends) == os.geteuid()
            client.shutdown(socket.SHUT_WR)  # it still reads
            assert look(*ends) == os.geteuid()
            client.close()
            assert look(*ends) is None
    assert look(("127.0.0.1", 1), ("127.0.0.1", 2)) is None


@linux
@LOOKS
def test_an_ipv6_socket_may_speak_ipv4(look: Look) -> None:
    with listening("127.0.0.1") as server, socket.socket(socket.AF_INET6) as client:
        client.connect((f"::ffff:{server.getsockname()[0]}", server.getsockname()[1]))
        ours, _ = server.accept()
        with ours:
            assert look(ours.getpeername(), ours.getsockname()) == os.geteuid()


@only_root
@linux
@LOOKS
def test_it_is_the_user_at_the_other_end(look: Look) -> None:
    """Not ours, which has the same addresses the other way around."""
    with listening("127.0.0.1") as server, connected_stranger(server.getsockname()):
        ours, _ = server.accept()
        with ours:
            assert look(ours.getpeername(), ours.getsockname()) == UID
            assert look(ours.getsockname(), ours.getpeername()) == os.geteuid()


@linux
def test_a_look_up_that_fails_finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many connections, which leave no descriptor, would make everybody unknown."""
    peers = TcpPeers()
    assert peers.uid(None, None) == NOBODY

    def fails(*_: object) -> int:
        raise OSError(24, "Too many open files")

    peers._look = fails
    assert peers.uid(("127.0.0.1", 1), ("127.0.0.1", 2)) == NOBODY


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_peer, "_working", lambda: None)
    peers = TcpPeers()
    assert peers.uid(("127.0.0.1", 1), ("127.0.0.1", 2)) == UNTOLD


@linux
def test_the_tables_are_read_where_netlink_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_peer, "_SOCK_DIAG", 999)  # a protocol that no kernel has
    assert tcp_peer._working() is by_proc
    monkeypatch.setattr(tcp_peer, "_PROC", ("/nowhere/tcp",))
    assert tcp_peer._working() is None
