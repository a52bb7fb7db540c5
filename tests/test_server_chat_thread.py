"""Conversations that take long to render leave the loop to others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.fake_engine import answer
from tests.server_harness import DaemonProcess, RawClient, Result, eventually, running
from tests.test_server_chat import ready
from umaserve.protocol import ChatMessage, ProtocolError
from umaserve.server import chat_thread
from umaserve.server.chat import ChatRenderer
from umaserve.server.chat_thread import ChatThread, Outcome

ONE = [ChatMessage("user", "hi")]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_what_a_rendering_takes_is_judged_by_the_last() -> None:
    renderer = ChatRenderer()
    assert renderer.seconds(ONE, ready(TEMPLATE)) == float("inf")
    renderer.render(ONE, ready(TEMPLATE))
    taken = renderer.seconds(ONE, ready(TEMPLATE))
    assert 0 < taken < float("inf")
    assert renderer.seconds(ONE * 50, ready(TEMPLATE)) == pytest.approx(50 * taken)
    many = [ChatMessage("user", "hi" * 70)]
    assert renderer.seconds(many, ready(TEMPLATE)) == pytest.approx(70 * taken)
    assert renderer.seconds(ONE, ready("another")) == float("inf")


def test_only_what_is_quick_is_rendered_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    run = ChatRenderer._run

    def noted(self: ChatRenderer, *arguments: object) -> str:
        threads.append(threading.current_thread())
        return run(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ChatRenderer, "_run", noted)
    monkeypatch.setattr(chat_thread, "QUICK_S", 60.0)

    async def main() -> list[Outcome]:
        chats = ChatThread()
        outcomes: list[Outcome] = []
        came = trio.Event()

        def done(outcome: Outcome) -> None:
            assert threading.current_thread() is threading.main_thread()
            outcomes.append(outcome)
            came.set()

        assert chats.render(ONE, ready(TEMPLATE), done) is None and not outcomes
        await came.wait()
        again = chats.render(ONE, ready(TEMPLATE), done)
        assert again is not None
        monkeypatch.setattr(chat_thread, "QUICK_S", 0.0)
        came = trio.Event()
        assert chats.render(ONE * 2, ready("{{ raise_exception('no') }}"), done) is None
        await came.wait()
        return [*outcomes, again]

    first, refusal, again = trio.run(main)
    assert first == again == "hi"
    assert isinstance(refusal, ProtocolError) and refusal.code == "E_PROTO_003"
    main_thread = threading.main_thread()
    assert [thread is main_thread for thread in threads] == [False, True, False]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), n_ctx=1024, patch="chats-aside")


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client
    daemon.idle()
    Path(daemon.model + ".go").unlink(missing_ok=True)


def chat(client: RawClient, id: str, text: str) -> None:
    client.results[id] = Result()
    client.send(id=id, messages=[{"role": "user", "content": text}], max_tokens=5)


def slow_chat(daemon: DaemonProcess, client: RawClient) -> None:
    """Returns when its template runs; it goes on until there is the file that `go` makes."""
    seen = daemon.log.count("rendering")
    chat(client, "slow", "slowly")
    eventually(lambda: daemon.log.count("rendering") > seen)


def go(daemon: DaemonProcess) -> None:
    Path(daemon.model + ".go").touch()


def test_chats_beside_the_loop_are_answered_and_refused(client: RawClient) -> None:
    chat(client, "no", "refuse")
    chat(client, "yes", "hi")
    no, yes = client.finish()
    assert no.error is not None and no.error["code"] == "E_PROTO_003"
    assert bytes(yes.tokens) == answer("<s><user>hi", 5)


def test_others_are_served_while_a_chat_is_rendered(
    daemon: DaemonProcess, client: RawClient
) -> None:
    slow_chat(daemon, client)
    assert bytes(client.generate("hello", max_tokens=5).tokens) == answer("hello", 5)
    go(daemon)
    assert bytes(client.finish("slow")[0].tokens) == answer("<s><user>slowly", 5)


def test_a_chat_is_cancelled_while_it_is_rendered(daemon: DaemonProcess, client: RawClient) -> None:
    slow_chat(daemon, client)
    client.send(type="cancel", id="slow")
    assert client.answer("cancelled")["found"]
    go(daemon)
    (slow,) = client.finish("slow")
    assert slow.eos is not None and slow.eos["reason"] == "cancel" and not slow.tokens


def test_an_engine_dies_while_a_chat_is_rendered(daemon: DaemonProcess, client: RawClient) -> None:
    slow_chat(daemon, client)
    pid = daemon.engine_pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon.engine_pid() != pid)
    go(daemon)
    assert bytes(client.finish("slow")[0].tokens) == answer("<s><user>slowly", 5)
