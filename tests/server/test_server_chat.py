"""Conversations are rendered in a child: what a template does there concerns its request alone."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import trio

from tests.support.chat_questions import model_of, said
from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, RawClient, Result, eventually, running
from umaserve.chat import process as chat_process
from umaserve.chat.process import ChatProcess
from umaserve.chat.questions import Rendered
from umaserve.protocol import ProtocolError
from umaserve.server.requests.conversations import layer as chat
from umaserve.server.requests.conversations.layer import ChatLayer, Outcome
from umaserve.server.requests.queue.turns import Asker

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


def rendered(
    *templates: str | None,
    text: str = "hi",
    program: str = "",
    also: Callable[[ChatLayer], None] = lambda chats: None,
) -> list[Outcome]:
    """What comes of conversations with these templates, in order of their ends."""

    async def main() -> list[Outcome]:
        chats = ChatLayer(lambda *_, **__: None)
        outcomes: list[Outcome] = []
        for template in templates:
            model = model_of(template, program=program)
            chats.put(model, said(text), Rendered, outcomes.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while len(outcomes) < len(templates):
                await trio.sleep(0.01)
            also(chats)
            nursery.cancel_scope.cancel()
        return outcomes

    return trio.run(main)


def failure_of(outcome: Outcome) -> str:
    assert isinstance(outcome, ProtocolError) and outcome.code == "E_RUNTIME_003", outcome
    return outcome.message


def prompt_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Rendered), outcome
    return outcome.prompt


def test_texts_and_refusals() -> None:
    text, failure, last = rendered(PLAIN, "{% for", None)
    (refusal,) = rendered(REFUSES, text="refuse")
    assert prompt_of(text) == "hi"
    assert prompt_of(last) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert isinstance(refusal, ProtocolError) and refusal.code == "E_PROTO_003"
    assert '"messages"' in refusal.message and refusal.message.endswith(": no")
    assert "cannot be used: parser" in failure_of(failure)


def test_what_takes_too_long_is_ended_and_the_next_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "LIMIT_S", 0.5)
    after, endless = rendered(ENDLESS, PLAIN)
    assert "took more than 0.5 s" in failure_of(endless)
    assert prompt_of(after) == "hi"  # it does not wait for the other


def test_a_busy_machine_ends_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LIMIT_S", 0.3)
    take = ChatLayer._take

    def stopped(self: ChatLayer, program: str) -> ChatProcess:
        """A process that gets no processor for a second."""
        process = take(self, program)
        os.kill(process.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (process.pid, signal.SIGCONT)).start()
        return process

    monkeypatch.setattr(ChatLayer, "_take", stopped)
    (text,) = rendered(PLAIN)
    assert prompt_of(text) == "hi"


def test_what_gets_no_processor_at_all_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MOST_S", 0.5)
    take = ChatLayer._take

    def stopped(self: ChatLayer, program: str) -> ChatProcess:
        process = take(self, program)
        os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(ChatLayer, "_take", stopped)
    (failure,) = rendered(PLAIN)
    assert "was ended" in failure_of(failure)


def test_what_is_slow_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "setpriority", lambda *what: told.append(what))
    take = ChatLayer._take

    def noted(self: ChatLayer, program: str) -> ChatProcess:
        process = take(self, program)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(ChatLayer, "_take", noted)
    rendered(PLAIN, ENDLESS, PLAIN)
    assert pids[0] == pids[1] != pids[2]
    assert told == [(os.PRIO_PROCESS, pids[1], chat_process.NICE)]


def test_a_few_at_most_are_slow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LIMIT_S", 0.6)
    monkeypatch.setattr(chat, "MOST_SLOW", 1)
    first, second, third = rendered(ENDLESS, ENDLESS, PLAIN)
    assert "took more than" in failure_of(first) and "took more than" in failure_of(second)
    assert prompt_of(third) == "hi"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 4000000000 }}",
        "{% for i in range(31000) %}" + "x" * 10000 + "{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s * 2 %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
    ids=["repeats", "300 MB", "doubles", "recurses"],
)  # fmt: skip
def test_a_template_that_wants_too_much_is_an_error_of_the_request(template: str) -> None:
    huge, after = sorted(rendered(template, PLAIN), key=lambda o: isinstance(o, Rendered))
    assert failure_of(huge)
    assert prompt_of(after) == "hi"


def test_a_program_that_is_not_there_or_ends_is_an_error_of_the_request() -> None:
    assert "cannot be asked now" in failure_of(*rendered(PLAIN, program="/nowhere"))
    ends = shutil.which("true")
    assert ends is not None
    assert "exit status 0" in failure_of(*rendered(PLAIN, program=ends))


def test_a_build_without_a_chat_layer_says_what_is_missing() -> None:
    model = msgspec.structs.replace(model_of(PLAIN), program="", missing="no common/chat.h")

    async def main() -> Outcome:
        chats = ChatLayer(lambda *_, **__: None)
        outcomes: list[Outcome] = []
        chats.put(model, said("hi"), Rendered, outcomes.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while not outcomes:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return outcomes[0]

    assert "no common/chat.h" in failure_of(trio.run(main))


def test_a_conversation_that_is_forgotten_is_not_rendered() -> None:
    async def main() -> list[str]:
        chats = ChatLayer(lambda *_, **__: None)
        came: list[str] = []
        forget = chats.put(model_of("1"), said("x"), Rendered, lambda _: came.append("first"))
        chats.put(model_of("2"), said("x"), Rendered, lambda _: came.append("second"))
        forget()
        forget()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chats.run)
            while not came:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return came

    assert trio.run(main) == ["second"]


def test_programs_take_turns_and_interactive_ones_go_first() -> None:
    async def main() -> list[str]:
        chats = ChatLayer(lambda *_, **__: None)
        came: list[str] = []
        model = model_of(PLAIN)

        def put(name: str, program: str, lane: int = 0, app: str = "") -> None:
            def done(_: Outcome) -> None:
                came.append(name)

            chats.put(model, said(name), Rendered, done, lane=lane, asker=Asker(program, app))

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


def talk(client: RawClient, id: str, text: str) -> None:
    client.results[id] = Result()
    client.send(id=id, messages=[{"role": "user", "content": text}], max_tokens=5)


def child_of(daemon: DaemonProcess) -> psutil.Process | None:
    for process in daemon.children():
        try:
            if "uma-chat" in " ".join(process.cmdline()):
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
