"""Conversations are rendered in a child: what a template does there concerns its request alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import trio

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, RawClient, Result, eventually, running
from umaserve.protocol import ChatMessage, ProtocolError
from umaserve.server.requests import chat
from umaserve.server.requests.chat import ChatRenderer, Outcome
from umaserve.wire.messages import Ready

NUMBERS = {f.name: 1 for f in msgspec.structs.fields(Ready) if f.type is int and f.required}
TEXTS = {f.name: "x" for f in msgspec.structs.fields(Ready) if f.type is str and f.required}
ONE = [ChatMessage("user", "hi")]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def ready(template: str | None) -> Ready:
    return Ready(**NUMBERS, **TEXTS, chat_template=template, bos="<s>", eos="</s>")


def rendered(
    *templates: str | None,
    also: Callable[[ChatRenderer], None] = lambda chats: None,
    command: tuple[str, ...] = (),
) -> list[Outcome]:
    """What comes of conversations with these templates, in order of their ends."""

    async def main() -> list[Outcome]:
        chats = ChatRenderer(lambda *_, **__: None, command=command)
        outcomes: list[Outcome] = []
        for template in templates:
            chats.put(ONE, ready(template), outcomes.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while len(outcomes) < len(templates):
                await trio.sleep(0.01)
            also(chats)
            nursery.cancel_scope.cancel()
        return outcomes

    return trio.run(main)


def test_texts_and_refusals() -> None:
    text, refusal, failure, last = rendered(
        PLAIN, "{{ raise_exception('no') }}", "{{ 1 // 0 }}", None
    )
    assert text == "hi" and last == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert isinstance(refusal, ProtocolError) and refusal.code == "E_PROTO_003"
    assert '"messages"' in refusal.message and refusal.message.endswith(": no")
    assert isinstance(failure, ProtocolError) and failure.code == "E_RUNTIME_003"
    assert "ZeroDivisionError" in failure.message


def test_what_takes_too_long_is_ended_and_the_next_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "LIMIT_S", 0.5)
    endless, after = rendered(ENDLESS, PLAIN)
    assert isinstance(endless, ProtocolError) and endless.code == "E_RUNTIME_003"
    assert "took more than 0.5 s" in endless.message
    assert after == "hi"


def test_what_is_slow_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LIMIT_S", 1.5)
    pids: list[int] = []
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "setpriority", lambda *what: told.append(what))
    start = ChatRenderer._start

    def noted(self: ChatRenderer) -> None:
        start(self)
        assert self._process is not None
        pids.append(self._process.pid)

    monkeypatch.setattr(ChatRenderer, "_start", noted)
    rendered(PLAIN, ENDLESS, PLAIN)
    assert told == [(os.PRIO_PROCESS, pids[0], chat.NICE)]
    assert pids[-1] != pids[0]  # who gives way once does so for good


def test_a_child_that_cannot_be_started_is_an_error_of_the_request() -> None:
    (outcome,) = rendered(PLAIN, command=("/nowhere",))
    assert isinstance(outcome, ProtocolError) and outcome.code == "E_RUNTIME_003"
    assert "cannot be run" in outcome.message


def test_a_child_that_ends_is_an_error_of_the_request() -> None:
    (outcome,) = rendered(PLAIN, command=("true",))
    assert isinstance(outcome, ProtocolError) and outcome.code == "E_RUNTIME_003"
    assert "exit status 0" in outcome.message


def test_a_conversation_that_is_forgotten_is_not_rendered() -> None:
    async def main() -> list[str]:
        chats = ChatRenderer(lambda *_, **__: None)
        came: list[str] = []
        forget = chats.put(ONE, ready("first"), lambda _: came.append("first"))
        chats.put(ONE, ready("second"), lambda _: came.append("second"))
        forget()
        forget()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while not came:
                await trio.sleep(0.01)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return came

    assert trio.run(main) == ["second"]


def test_programs_take_turns_and_interactive_ones_go_first() -> None:
    async def main() -> list[str]:
        chats = ChatRenderer(lambda *_, **__: None)
        came: list[str] = []

        def put(name: str, program: str, lane: int = 0) -> None:
            chats.put(ONE, ready(name), lambda _: came.append(name), lane=lane, program=program)

        for i in range(3):
            put(f"flood{i}", "greedy")
        put("background", "other", 1)
        put("late", "other")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while len(came) < 5:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return came

    assert trio.run(main) == ["flood0", "late", "flood1", "flood2", "background"]


# --- in a daemon --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), n_ctx=1024, max_sessions=2)


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client
    daemon.idle()


def talk(client: RawClient, id: str, text: str) -> None:
    client.results[id] = Result()
    client.send(id=id, messages=[{"role": "user", "content": text}], max_tokens=5)


def child_of(daemon: DaemonProcess) -> psutil.Process | None:
    for process in daemon.children():
        try:
            if "umaserve.chat" in " ".join(process.cmdline()):
                return process
        except psutil.NoSuchProcess:
            continue
    return None


@pytest.fixture
def stopped_child(daemon: DaemonProcess, client: RawClient) -> Iterator[psutil.Process]:
    """The chat child, which answers only after it is told to go on."""
    talk(client, "before", "hi")
    client.finish("before")
    child = eventually(lambda: child_of(daemon), "a chat child")
    child.send_signal(signal.SIGSTOP)
    yield child
    if child.is_running():
        child.send_signal(signal.SIGCONT)


def test_chats_are_answered_and_refused(client: RawClient) -> None:
    talk(client, "no", "refuse")
    talk(client, "yes", "hi")
    no, yes = client.finish()
    assert no.error is not None and no.error["code"] == "E_PROTO_003"
    assert bytes(yes.tokens) == answer("<s><user>hi", 5)


def test_others_are_served_while_chats_are_rendered(
    client: RawClient, stopped_child: psutil.Process
) -> None:
    for i in range(4):  # more than there are rows
        talk(client, f"chat{i}", "hi")
    assert bytes(client.generate("hello", max_tokens=5).tokens) == answer("hello", 5)
    stopped_child.send_signal(signal.SIGCONT)
    for i in range(4):
        assert bytes(client.finish(f"chat{i}")[0].tokens) == answer("<s><user>hi", 5)


def test_a_chat_is_cancelled_while_it_is_rendered(
    client: RawClient, stopped_child: psutil.Process
) -> None:
    talk(client, "slow", "hi")
    client.send(type="cancel", id="slow")
    assert client.answer("cancelled")["found"]
    (slow,) = client.finish("slow")
    assert slow.eos is not None and slow.eos["reason"] == "cancel" and not slow.tokens


def test_an_engine_dies_while_a_chat_is_rendered(
    daemon: DaemonProcess, client: RawClient, stopped_child: psutil.Process
) -> None:
    pid = daemon.engine_pid()
    talk(client, "slow", "hi")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon.engine_pid() != pid)
    stopped_child.send_signal(signal.SIGCONT)
    assert bytes(client.finish("slow")[0].tokens) == answer("<s><user>hi", 5)


def test_a_chat_child_that_is_killed_costs_one_request(
    daemon: DaemonProcess, client: RawClient, stopped_child: psutil.Process
) -> None:
    talk(client, "slow", "hi")
    time.sleep(0.1)
    stopped_child.kill()
    (slow,) = client.finish("slow")
    assert slow.error is not None and slow.error["code"] == "E_RUNTIME_003"
    assert "signal 9" in slow.error["message"]
    talk(client, "again", "hi")
    assert bytes(client.finish("again")[0].tokens) == answer("<s><user>hi", 5)


def test_a_chat_child_that_is_killed_while_idle_costs_nothing(
    client: RawClient, stopped_child: psutil.Process
) -> None:
    stopped_child.kill()
    eventually(lambda: stopped_child.status() == psutil.STATUS_ZOMBIE)
    talk(client, "next", "hi")
    assert bytes(client.finish("next")[0].tokens) == answer("<s><user>hi", 5)


@pytest.mark.parametrize("template", [ENDLESS, "{{ 'a' * 4000000000 }}"])
def test_hostile_templates_leave_a_daemon_that_serves_and_stops(
    tmp_path: Path, template: str
) -> None:
    environment = {"FAKE_TEMPLATE": template}
    with DaemonProcess(tmp_path, n_ctx=1024, environment=environment) as daemon:
        with daemon.client() as client:
            talk(client, "chat", "hi")
            assert bytes(client.generate("hello", max_tokens=5).tokens) == answer("hello", 5)
            client.ask("stream", "hello", max_tokens=500)
            (chat,) = client.finish("chat")
            assert chat.error is not None and chat.error["code"] == "E_RUNTIME_003"
            assert len(client.finish("stream")[0].tokens) == 500
            front = psutil.Process(daemon.process.pid)
            assert front.memory_info().rss < 200 << 20
            talk(client, "chat at the end", "hi")
            time.sleep(0.1)
        daemon.stop()
