"""Shares over HTTP: a key's are its own, whatever apps its requests name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import begun, gateway, post
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.gateway.daemon import link

ALICE, BOB = "key-of-alice-0001", "key-of-bob-000002"
LIMITS: dict[str, Any] = {"n_ctx": 1024, "max_sessions": 4, "n_seq": 2, "max_queue": 8}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {ALICE}\nbob {BOB}\n")
    keys.chmod(0o600)
    slow = {"FAKE_TICK_MS": "20"}
    with DaemonProcess(
        tmp_path, environment=slow, http="127.0.0.1:0", api_key_file=str(keys), **LIMITS
    ) as daemon:
        yield daemon


def test_a_flood_by_one_key_keeps_no_other_key_out(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    body = {"prompt": "flood", "max_tokens": 200}
    with contextlib.ExitStack() as open_ones:
        flood = [
            open_ones.enter_context(
                begun(port, "/generate", body, **{"X-Api-Key": BOB, "X-UMA-App": f"app {n}"})
            )
            for n in range(12)
        ]
        eventually(lambda: len(daemon.info()["sessions"]) == 12, "the queue is full")
        asked = {"prompt": "hello", "max_tokens": 5, "stream": False}
        # by turns: one of the flood's has the row that alice's waits for
        assert post(port, "/generate", asked, X_Api_Key=ALICE, X_UMA_App="app 1").status == 200
        waiting = [row for row in daemon.info()["sessions"] if row["state"] == "queued"]
        assert len(waiting) >= 4, "much of the flood still waits"
        with daemon.client() as client:  # a process on the socket is another program as well
            assert client.generate("hello", max_tokens=5).error is None
        refused = [sock for sock in flood if _is_refused(sock)]
        assert len(refused) <= 2
    daemon.idle()


def test_a_flood_by_one_app_of_a_key_keeps_no_other_app_of_it_out(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    body = {"prompt": "flood", "max_tokens": 200}
    with contextlib.ExitStack() as open_ones:
        named = {"X-Api-Key": BOB, "X-UMA-App": "agent"}
        flood = [
            open_ones.enter_context(begun(port, "/generate", body, **named)) for _ in range(12)
        ]
        eventually(lambda: len(daemon.info()["sessions"]) == 12, "the queue is full")
        asked = {"prompt": "hello", "max_tokens": 5, "stream": False}
        assert post(port, "/generate", asked, X_Api_Key=BOB, X_UMA_App="editor").status == 200
        waiting = [row for row in daemon.info()["sessions"] if row["state"] == "queued"]
        assert len(waiting) >= 4, "much of the flood still waits"
        assert len([sock for sock in flood if _is_refused(sock)]) <= 1
    daemon.idle()


def _is_refused(sock: Any) -> bool:
    """Whether an answer has come that is an error."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        data = sock.recv(65536)
        return b" 429 " in data or b'"E_LIMIT_002"' in data
    return False


def test_texts_of_one_key_keep_no_other_key_out(daemon: DaemonProcess) -> None:
    """On one connection of the gateway's, which has 64 answers of a program under way."""
    with daemon.client() as client:
        client.send(type="info", relays=True)
        client.answer("info")
        for n in range(200):
            client.send(type="tokenize", id=f"b{n}", text="flood " * 400, key="bob")
        client.send(type="tokenize", id="a", text="hello", key="alice")
        told = [client.answer("tokens") for _ in range(201)]
    refused = [each["id"] for each in told if each["event"] == "error"]
    assert refused and "a" not in refused


def test_the_daemon_is_told_whose_texts_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    send = link.Connection.send

    def noted(self: link.Connection, message: dict[str, Any]) -> None:
        sent.append(message)
        send(self, message)

    monkeypatch.setattr(link.Connection, "send", noted)
    with (
        DaemonProcess(tmp_path) as daemon,
        gateway(daemon.path, keys={ALICE: "alice", BOB: "bob"}) as port,
    ):
        for key in (ALICE, BOB):
            assert post(port, "/tokenize", {"content": "x"}, X_Api_Key=key).status == 200
            assert post(port, "/detokenize", {"tokens": [65]}, X_Api_Key=key).status == 200
    asked = [(each["type"], each["key"]) for each in sent if each.get("type") in link.SHARED]
    assert asked == [
        (kind, key) for key in ("alice", "bob") for kind in ("tokenize", "detokenize")
    ]  # fmt: skip
