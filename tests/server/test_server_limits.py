"""Bad input and clients that misbehave: each a clear error, and a daemon that goes on."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import (
    DaemonProcess,
    RawClient,
    Result,
    engines_of,
    eventually,
    running,
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(
        tmp_path_factory.mktemp("daemon"),
        n_ctx=1024,
        max_tokens=600,
        max_frame_bytes=20000,
        max_prompt_bytes=2000,
        max_connections=50,
        max_unsent_bytes=20000,
        idle_timeout_s=60,
    )


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client
    daemon.idle()
    with daemon.client() as other:
        result = other.generate("and it goes on", max_tokens=3)
        assert bytes(result.tokens) == answer("and it goes on", 3)


def error(client: RawClient) -> tuple[str, str]:
    event = client.receive()
    assert event is not None and event["event"] == "error", event
    return event["code"], event["message"]


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"', b"\xff\xfe", b"", b'{"id":"a"} x'])
def test_not_json_closes(client: RawClient, body: bytes) -> None:
    client.send_body(body)
    assert error(client)[0] == "E_PROTO_001"
    assert client.receive() is None


def test_frame_beyond_the_cap_is_refused_before_its_bytes(client: RawClient) -> None:
    client.socket.sendall(struct.pack("<I", 2**31))
    code, message = error(client)
    assert code == "E_PROTO_002" and "20000" in message
    assert client.receive() is None


def test_client_that_goes_on_sending_hears_the_error(client: RawClient) -> None:
    client.socket.sendall(struct.pack("<I", 500_000) + b"x" * 500_000)
    assert error(client)[0] == "E_PROTO_002"
    assert client.receive() is None


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"prompt": "x"}, "id"),
        ({"id": "a"}, "prompt"),
        ({"id": "a", "prompt": 5}, "prompt"),
        ({"id": "a", "prompt": "x", "temperature": "hot"}, "temperature"),
        ({"id": "a", "prompt": "x", "max_tokens": 601}, "max_tokens"),
        ({"type": "nonsense"}, "type"),
        ({"type": "load"}, "model"),
        ({"type": "priority", "id": "nobody", "priority": "interactive"}, "id"),
    ],
)
def test_bad_field_is_named_and_the_connection_stays(
    client: RawClient, message: dict, name: str
) -> None:
    client.send(**message)
    code, text = error(client)
    assert code == "E_PROTO_003" and f'"{name}"' in text
    assert len(client.generate("x", max_tokens=2).tokens) == 2


def test_prompt_beyond_the_cap(client: RawClient) -> None:
    client.send(id="a", prompt="x" * 2001)
    code, text = error(client)
    assert code == "E_LIMIT_001" and "2001" in text and "2000" in text
    assert len(client.generate("x", max_tokens=2).tokens) == 2


def test_id_in_flight(client: RawClient) -> None:
    client.ask("a", "first", max_tokens=100)
    client.send(id="a", prompt="second")
    codes = []
    while client.results["a"].eos is None:
        event = client.receive()
        if event["event"] == "error":
            codes.append(event["code"])
            client.results["a"].error = None
    assert codes == ["E_PROTO_004"]
    assert bytes(client.results["a"].tokens) == answer("first", 100)


def test_errors_are_counted_by_code(daemon: DaemonProcess, client: RawClient) -> None:
    before = daemon.metrics()["errors_total"]
    client.send(id="a", prompt=5)
    client.send(id="a", prompt="x" * 2001)
    client.generate("[reject]", "b")
    client.generate("[error@1]", "c")
    with daemon.client() as other:
        other.send_body(b"{")
        assert other.receive()["code"] == "E_PROTO_001"
    after = daemon.metrics()["errors_total"]
    grown = {code: after[code] - before.get(code, 0) for code in after}
    assert {code: n for code, n in grown.items() if n} == {
        "E_PROTO_001": 1, "E_PROTO_003": 2, "E_LIMIT_001": 1, "E_RUNTIME_001": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "rest",
    [
        rb'"prompt":"cut emoji \ud83d"',
        rb'"messages":[{"role":"user","content":"\ude00"}]',
        b'"prompt":"x","temperature":1e400',
        b'"prompt":"x","seed":' + b"9" * 5000,
        b'"prompt":"x","metadata":' + b"[" * 5000 + b"]" * 5000,
    ],
    ids=["lone surrogate", "in messages", "float overflow", "giant whole number", "too deep"],
)
def test_one_message_that_cannot_be_read_ends_nothing_else(client: RawClient, rest: bytes) -> None:
    client.ask("healthy", "it goes on", max_tokens=100)
    client.send_body(b'{"id":"bad",' + rest + b"}")
    client.finish("healthy")
    assert bytes(client.results["healthy"].tokens) == answer("it goes on", 100)
    assert [(e["id"], e["code"]) for e in client.other] == [("bad", "E_PROTO_003")]
    assert len(client.generate("x", max_tokens=2).tokens) == 2


def test_good_frames_before_a_bad_one_are_served(client: RawClient) -> None:
    client.results["a"] = Result()
    body = json.dumps({"id": "a", "prompt": "x", "max_tokens": 1}).encode()
    ping = b'{"type":"ping"}'
    client.socket.sendall(
        b"".join(struct.pack("<I", len(b)) + b for b in (ping, body, ping)) + b"\xff\xff\xff\xff"
    )
    assert [client.receive()["event"] for _ in range(3)] == ["pong", "pong", "error"]


def test_frame_in_pieces(client: RawClient) -> None:
    client.results["a"] = Result()
    body = json.dumps({"id": "a", "prompt": "bit by bit", "max_tokens": 5}).encode()
    for byte in struct.pack("<I", len(body)) + body:
        client.socket.sendall(bytes([byte]))
    (result,) = client.finish()
    assert bytes(result.tokens) == answer("bit by bit", 5)


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_client_that_leaves_inside_a_frame(client: RawClient, cut: int) -> None:
    body = json.dumps({"id": "a", "prompt": "x"}).encode()
    client.socket.sendall((struct.pack("<I", len(body)) + body)[:cut])


def test_client_that_never_reads_costs_only_itself(daemon: DaemonProcess) -> None:
    before = daemon.metrics()["errors_total"].get("E_IO_001", 0)
    with daemon.client() as deaf, daemon.client() as other:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        others = []
        for i in range(100):
            deaf.ask(f"{i:0128}", "x", max_tokens=600)
        while daemon.metrics()["errors_total"].get("E_IO_001", 0) == before:
            result = other.generate("not disturbed", f"o{len(others)}", max_tokens=20)
            others.append(bytes(result.tokens))
        assert set(others) == {answer("not disturbed", 20)}
        daemon.idle()
        # whole frames to the last, and that one says why
        last = None
        while (event := deaf.receive()) is not None:
            last = event
        assert last is not None and last.get("code") == "E_IO_001"


def test_connections_are_limited(daemon: DaemonProcess) -> None:
    clients = [daemon.client() for _ in range(50)]
    try:
        eventually(lambda: clients[-1].send(type="ping") or clients[-1].answer("pong"))
        with daemon.client() as extra:
            assert error(extra)[0] == "E_LIMIT_002"
            assert extra.receive() is None
    finally:
        for client in clients:
            client.socket.close()
    eventually(daemon.reachable)


def test_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    settings = {"idle_timeout_s": 0.4, "environment": {"FAKE_TICK_MS": "20"}}
    with (
        DaemonProcess(tmp_path, **settings) as daemon,
        daemon.client() as idle,
        daemon.client() as busy,
        daemon.client() as watcher,
    ):
        busy.ask("a", "takes its time", max_tokens=60)
        watcher.send(type="metrics", interval_ms=100)
        assert error(idle)[0] == "E_LIMIT_004"
        assert idle.receive() is None
        (result,) = busy.finish()
        assert len(result.tokens) == 60
        assert error(busy)[0] == "E_LIMIT_004"
        for _ in range(8):
            assert watcher.answer("metrics")["event"] == "metrics"


def test_storm_of_clients(tmp_path: Path) -> None:
    """32 clients, 200 requests, cancels, half-sent frames, clients that vanish; nothing is left."""
    with DaemonProcess(tmp_path, n_ctx=1024, max_connections=200) as daemon:
        engine = daemon.engine_pid()
        failures: list[str] = []
        done = []

        def worker(number: int) -> None:
            rng = random.Random(number)
            try:
                client = daemon.client()
                for turn in range(7 if number < 8 else 6):
                    prompt, tokens = f"client {number} turn {turn}", rng.randint(1, 40)
                    id = f"{number}-{turn}"
                    fate = rng.random()
                    client.ask(id, prompt, max_tokens=tokens)
                    if fate < 0.15:
                        client.send(type="cancel", id=id)
                    elif fate < 0.25:
                        client.socket.sendall(b"\x40\x00\x00\x00{")
                        client.socket.close()
                        client = daemon.client()
                        done.append(id)
                        continue
                    (result,) = client.finish(id)
                    expected = answer(prompt, len(result.tokens))
                    good = result.eos is not None and bytes(result.tokens) == expected
                    if good and result.eos["reason"] != "cancel":
                        good = len(result.tokens) == tokens
                    if not good:
                        failures.append(f"{id}: {result}")
                    done.append(id)
                client.socket.close()
            except BaseException as error:
                failures.append(f"{number}: {error!r}")

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(done) == 200
        daemon.idle()
        assert daemon.engine_pid() == engine
        metrics = daemon.metrics()
        assert metrics["requests_total"] == 200
        assert metrics["active_sessions"] == metrics["queued_interactive"] == 0
        front = psutil.Process(daemon.process.pid)
        eventually(lambda: len(daemon.children()) == 2, "an engine and a chat child")
        fds = front.num_fds()
        for _ in range(20):
            with daemon.client() as client:
                client.generate("x", max_tokens=1)
        time.sleep(0.2)
        assert front.num_fds() <= fds
        assert len(engines_of(front.pid)) == 1
        assert os.path.exists(daemon.path)
