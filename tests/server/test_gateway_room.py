"""Which connection gives way where all are taken, and what one key may have at a time."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gateway import everything, gateway, post
from tests.support.server_harness import eventually
from umaserve.gateway.room import BUSY, IDLE, UNFINISHED, Room, holder_at, next_order
from umaserve.system.tcp_peer import UNTOLD, TcpPeers

KEYS = {"0123456789abcdef": "alice", "fedcba9876543210": "bob"}
ALICE, BOB = KEYS
MOST = 12


@dataclass(eq=False)
class Connection:
    holder: str
    stage: int = IDLE
    closed: bool = False
    asked: int = field(default_factory=next_order)

    def close_now(self) -> None:
        self.closed = True


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(UNFINISHED, BUSY)), max_size=60))
def test_nobody_loses_to_a_holder_of_more(newcomers: list[tuple[str, int]]) -> None:
    room, there = Room(5), list[Connection]()
    for holder, stage in newcomers:
        new = Connection(holder, stage)
        counts = {name: sum(c.holder == name for c in there) for name in "abc"}
        taken = room.has_place(new, there)
        gone = [c for c in there if c.closed]
        there = [c for c in there if not c.closed]
        if taken:
            there.append(new)
        assert len(there) <= 5 and len(gone) <= 1
        for each in gone:
            assert taken and each.stage != BUSY
            assert each.holder == holder or counts[each.holder] > counts[holder] + 1
            others = [c for c in there if c.holder == each.holder and c is not new]
            assert all((c.stage, c.asked) > (each.stage, each.asked) for c in others)
        if not taken:
            assert all(c.stage == BUSY or counts[c.holder] <= counts[holder] + 1 for c in there)


def test_holders_without_a_key() -> None:
    assert holder_at("127.0.0.1", 1000) == holder_at("::1", 1000) != holder_at("::1", 1001)
    assert holder_at("::ffff:10.0.0.1", UNTOLD) == holder_at("10.0.0.1", UNTOLD)
    assert holder_at("2001:db8::1", UNTOLD) == holder_at("2001:db8::ffff:0:1%eth0", UNTOLD)
    assert holder_at("2001:db8::1", UNTOLD) != holder_at("2001:db8:1::1", UNTOLD)
    assert holder_at("", UNTOLD) == holder_at("", UNTOLD)


def unfinished(port: int, key: str, source: str = "127.0.0.1") -> socket.socket:
    """A request whose body has not come."""
    sock = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\n"
    sock.sendall(f"{head}Connection: close\r\nContent-Length: 2\r\n\r\n".encode())
    return sock


def is_open(sock: socket.socket) -> bool:
    return not select.select([sock], [], [], 0)[0]


def asked(port: int, key: str) -> int:
    """Status of a request that reaches no daemon."""
    return post(port, "/generate", {}, X_Api_Key=key, Connection="close").status


def with_keys(**settings: Any) -> Any:
    return gateway(keys=KEYS, api_key_file="x", max_connections=MOST, **settings)


def test_bodies_that_never_come_take_no_other_keys_place() -> None:
    with with_keys() as port:
        upload = unfinished(port, BOB)
        flood = [unfinished(port, ALICE) for _ in range(5 * MOST)]
        assert asked(port, BOB) == 503  # which is what a gateway without a daemon says
        assert is_open(upload)
        upload.sendall(b"{}")
        assert everything(upload).startswith(b"HTTP/1.1 503 ")
        for each in (upload, *flood):
            each.close()


def test_bodies_that_never_come_are_counted_by_address_where_no_user_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TcpPeers, "uid", lambda *_: UNTOLD)
    with gateway(max_connections=MOST) as port:
        upload = unfinished(port, "")
        flood = [unfinished(port, "", "127.0.0.2") for _ in range(5 * MOST)]
        assert is_open(upload)
        upload.sendall(b"{}")
        assert everything(upload).startswith(b"HTTP/1.1 503 ")
        eventually(lambda: not any(map(is_open, flood[: 3 * MOST])), "the oldest give way")
        for each in (upload, *flood):
            each.close()


def test_connections_that_say_nothing_give_way_to_other_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TcpPeers, "uid", lambda *_: UNTOLD)
    with gateway(max_connections=MOST) as port:
        silent = [
            socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.2", 0))
            for _ in range(2 * MOST)
        ]
        assert asked(port, "") == 503
        for sock in silent:
            sock.close()


def test_a_key_leaves_places_to_others() -> None:
    with with_keys() as port:
        begun = [unfinished(port, ALICE) for _ in range(MOST // 2)]
        refused = unfinished(port, ALICE)
        assert b"HTTP/1.1 429 " in refused.recv(1000)
        assert asked(port, BOB) == 503
        begun[0].sendall(b"{}")
        assert everything(begun[0]).startswith(b"HTTP/1.1 503 ")
        assert asked(port, ALICE) == 503, "a place that was given back"
        for each in (refused, *begun):
            each.close()
