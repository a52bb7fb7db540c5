"""The bodies of all requests share a budget of bytes, divided among the keys."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.support.gateway import gateway, post
from tests.support.server_harness import eventually
from umaserve.gateway import guard
from umaserve.gateway.daemon import link

ALICE, BOB = "key-of-alice-0001", "key-of-bob-000002"
BODY, BUDGET = 1000, 4000  # bytes: a key alone may hold half of the budget


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(link, "BODY_BYTES", BODY)
    monkeypatch.setattr(guard, "BODIES_BYTES", BUDGET)
    with gateway(keys={ALICE: "alice", BOB: "bob"}) as port:
        yield port


def unfinished(port: int, key: str) -> socket.socket:
    """A request whose body has 900 bytes of 999."""
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\n"
    sock = socket.create_connection(("127.0.0.1", port), 60)
    sock.sendall(head.encode() + b"Content-Length: 999\r\n\r\n" + b"[" * 900)
    return sock


def code_of(port: int, key: str, size: int) -> str:
    """What is said to a body of so many bytes that is no JSON."""
    return post(port, "/generate", b"[" * size, X_Api_Key=key).json["error"]["code"]


def test_bodies_of_one_key_leave_room_for_another_s_and_are_given_back(port: int) -> None:
    assert code_of(port, ALICE, 900) == "invalid_json"
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(unfinished(port, BOB))
        eventually(lambda: code_of(port, BOB, 900) == "bodies_too_large")
        refused = post(port, "/generate", b"[" * 900, X_Api_Key=BOB)
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        assert "wait for some of them" in refused.json["error"]["message"]
        assert code_of(port, ALICE, 900) == "invalid_json"
    eventually(lambda: code_of(port, BOB, 900) == "invalid_json")


def test_bodies_that_were_answered_are_given_back(port: int) -> None:
    for _ in range(8):
        assert code_of(port, BOB, 900) == "invalid_json"
        assert code_of(port, BOB, 1001) == "body_too_large"
