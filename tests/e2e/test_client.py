"""Both clients against a stand-in daemon that can misbehave."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
import trio

from tests.support.fixtures.fake_daemon import FakeDaemon
from umaserve.client import (
    Client,
    ConnectionFailed,
    Eos,
    ProtocolError,
    ServerError,
    Token,
    TrioClient,
)
from umaserve.protocol import Generate


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        yield daemon


@pytest.fixture
def client(daemon):
    with Client(daemon.path, timeout=20) as client:
        yield client


@contextlib.contextmanager
def crowded(path):
    """A daemon that takes connections only after a while, with no room for one more to wait."""
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as stack:
        listening.bind(path)
        listening.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(path)
            except BlockingIOError:
                break

        listening.settimeout(10)

        def take() -> None:
            time.sleep(0.3)
            stack.enter_context(listening.accept()[0])

        thread = threading.Thread(target=take)
        thread.start()
        yield
        thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses at once, as if nobody listened")
@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_client_waits_for_its_place_in_the_line(tmp_path, timeout):
    path = str(tmp_path / "d.sock")
    with crowded(path), Client(path, timeout=timeout) as client:
        assert client._socket.getpeername() == path


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses at once, as if nobody listened")
def test_a_trio_client_waits_for_its_place_in_the_line(tmp_path):
    path = str(tmp_path / "d.sock")

    async def main():
        with trio.fail_after(20):
            async with TrioClient(path) as client:
                assert client._stream.socket.getpeername() == path

    with crowded(path):
        trio.run(main)


def with_trio(test):
    @functools.wraps(test)
    def run(daemon):
        async def main():
            with trio.fail_after(30):
                async with TrioClient(daemon.path) as client:
                    await test(daemon, client)

        trio.run(main)

    del run.__wrapped__  # pytest would look for `client` in the signature
    return run


def test_generate_yields_tokens_then_one_eos(client):
    events = list(client.generate("a b c", max_tokens=2))
    assert [type(e) for e in events] == [Token, Token, Eos]
    assert "".join(e.text or "" for e in events) == "a b "
    assert events[-1].reason == "length"
    assert events[-1].usage.completion_tokens == 2
    assert events[-1].timings.ttft_ms == 1.0


def test_options_arrive_and_none_is_left_out(daemon, client):
    client.complete("x", temperature=0.0, stop=["q"], seed=None, priority="background")
    (message,) = daemon.seen
    assert isinstance(message, Generate)
    assert message.sampling["temperature"] == 0.0
    assert message.stop == ("q",)
    assert message.sampling["seed"] is None
    assert message.priority == "background"
    assert message.stream is False


def test_complete_takes_messages_and_returns_text_and_usage(client):
    answer = client.complete(messages=[{"role": "user", "content": "one two"}])
    assert answer.text == "one two "
    assert answer.reason == "stop"
    assert answer.usage.completion_tokens == 2


def test_complete_can_stream(client):
    assert client.complete("one two", stream=True).text == "one two "


def test_streams_in_flight_are_told_apart(client):
    first, second = client.generate("a b c"), client.generate("d e f")
    texts = {"first": "", "second": ""}
    for one, two in zip(first, second, strict=True):
        texts["first"] += one.text or ""
        texts["second"] += two.text or ""
    assert texts == {"first": "a b c ", "second": "d e f "}


def test_an_id_in_flight_is_refused_before_it_is_sent(daemon, client):
    stream = client.generate("slow", id="same")
    next(stream)
    with pytest.raises(ValueError, match="same"):
        client.generate("x", id="same")
    stream.close()
    assert client.complete("x y", id="same").text == "x y "


def test_leaving_a_stream_cancels_it_and_the_connection_goes_on(daemon, client):
    with client.generate("slow") as stream:
        next(stream)
    assert daemon.cancelled == [stream.id]
    assert stream.eos is not None and stream.eos.reason == "cancel"
    assert list(stream) == []
    assert client.complete("still here").text == "still here "
    assert client.cancel(stream.id) is False


def test_cancel_by_id_ends_the_stream_with_its_reason(client):
    stream = client.generate("slow")
    next(stream)
    assert client.cancel(stream.id) is True
    assert list(stream)[-1].reason == "cancel"


def test_server_error_ends_only_its_stream(client):
    other = client.generate("slow", max_tokens=3)
    events = []
    with pytest.raises(ServerError) as error:
        for event in client.generate("fail"):
            events.append(event)
    assert [e.text for e in events] == ["oh "]
    assert error.value.code == "E_RUNTIME_001"
    assert list(other)[-1].reason == "length"


def test_refusal_names_the_field(client):
    with pytest.raises(ServerError, match="temperature") as error:
        client.complete("x", temperature="hot")
    assert error.value.code == "E_PROTO_003"


def test_hangup_in_the_middle(client):
    stream = client.generate("hangup")
    assert next(stream).text == "bye "
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        next(stream)
    with pytest.raises(ConnectionFailed, match="closed"):
        client.ping()


def test_garbage_is_a_protocol_error(client):
    with pytest.raises(ProtocolError, match="not JSON"):
        list(client.generate("garbage"))


def test_timeout_says_so(daemon):
    with Client(daemon.path, timeout=0.05) as client, pytest.raises(ConnectionFailed, match="0.05"):
        list(client.generate("mute"))


def test_no_daemon_says_what_to_do(tmp_path, monkeypatch):
    path = str(tmp_path / "none.sock")
    monkeypatch.setenv("UMA_SOCK", path)
    with pytest.raises(ConnectionFailed, match="start one with `umaserve` or set UMA_SOCK") as e:
        Client()
    assert path in str(e.value)


def test_admin(client):
    assert client.ping() > 0
    assert client.cache()["entries"] == 2
    assert client.info()["pid"] == os.getpid()
    assert client.tokenize("aa b") == [2, 1]
    assert client.metrics()["model"] == "fake"
    seen = []
    answer = client.load("/m.gguf", lambda fraction, stage: seen.append((fraction, stage)))
    assert answer["model"]["name"] == "fake"
    assert seen == [(0.0, "start"), (0.5, "weights"), (1.0, "warmup")]
    with pytest.raises(ServerError, match="E_MODEL_002"):
        client.load("/m.txt")
    client.unload()
    client.priority("r", "background")
    with pytest.raises(ServerError, match="not in flight"):
        client.priority("nobody", "background")


def test_watch_metrics_beside_a_stream(client):
    samples = client.watch_metrics(interval_ms=50)
    assert [next(samples)["sample"] for _ in range(3)] == [0, 1, 2]
    assert client.complete("a b").text == "a b "
    assert next(samples)["sample"] == 3
    samples.close()
    assert client.complete("c").text == "c "
    assert not client._router.answers


@with_trio
async def test_trio_generate(daemon, client):
    async with client.generate("a b c") as stream:
        events = [event async for event in stream]
    assert "".join(e.text or "" for e in events) == "a b c "
    assert stream.eos is events[-1]
    assert daemon.cancelled == []


@with_trio
async def test_trio_tasks_share_a_connection(daemon, client):
    answers: dict[str, str] = {}

    async def ask(text: str) -> None:
        answers[text] = (await client.complete(text, stream=True)).text

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(ask, f"task {n} says {n}")
        nursery.start_soon(client.ping)
    assert answers == {f"task {n} says {n}": f"task {n} says {n} " for n in range(20)}


@with_trio
async def test_trio_cancel_scope_cancels_on_the_server(daemon, client):
    with trio.CancelScope() as scope:
        async with client.generate("slow") as stream:
            async for _ in stream:
                scope.cancel()
    assert scope.cancelled_caught
    assert daemon.cancelled == [stream.id]
    assert (await client.complete("still here")).text == "still here "


@with_trio
async def test_trio_a_cancelled_reader_hands_over(daemon, client):
    """The task that reads the socket goes away; another takes over and misses nothing."""
    answers = []

    async def ask() -> None:
        answers.append((await client.complete("a b c", stream=True)).text)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.05):
            async with client.generate("mute"):
                await trio.sleep(0)
                nursery.start_soon(ask)
                await client._receive()
                await trio.sleep_forever()
    assert answers == ["a b c "]


@with_trio
async def test_trio_errors(daemon, client):
    with pytest.raises(ServerError, match="E_RUNTIME_001"):
        await client.complete("fail")
    with pytest.raises(ServerError, match="top_p"):
        await client.complete("x", top_p=7)
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        await client.complete("hangup")
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        await client.ping()


@with_trio
async def test_trio_admin(daemon, client):
    assert await client.ping() > 0
    assert (await client.cache())["entries"] == 2
    assert (await client.info())["model"]["name"] == "fake"
    assert await client.tokenize("aa b") == [2, 1]
    assert (await client.load("/m.gguf"))["event"] == "loaded"
    await client.unload()
    await client.priority("r", "interactive")
    assert await client.cancel("nobody") is False
    samples = client.watch_metrics(50)
    assert [(await samples.__anext__())["sample"] for _ in range(2)] == [0, 1]
    await samples.aclose()


def test_trio_no_daemon(tmp_path):
    async def main():
        async with TrioClient(str(tmp_path / "none.sock")):
            raise AssertionError("connected to nothing")

    with pytest.raises(ConnectionFailed, match="no daemon"):
        trio.run(main)


def test_the_sync_client_imports_nothing_heavy():
    code = (
        "import sys, umaserve.client; "
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'numpy', 'numba', 'trio', 'msgspec', 'cffi', 'rich', 'dataclasses', 'inspect'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
