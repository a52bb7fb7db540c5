"""Engines that die, abort, hang and cannot load: clients see a pause, the culprit an error."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.patches.front import impatient
from tests.support.server_harness import DaemonProcess, Result, engines_of, eventually, model_file

SLOW = {"FAKE_TICK_MS": "5"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    settings = {"n_ctx": 1024, "hang_timeout_s": 1.0}
    with DaemonProcess(tmp_path, environment=SLOW, **settings) as daemon:
        yield daemon
        daemon.idle()


def exact(result: Result, prompt: str, tokens: int) -> None:
    assert result.error is None
    assert bytes(result.tokens) == answer(prompt, tokens)
    assert result.text == answer(prompt, tokens).decode("utf-8", "replace")
    assert result.eos is not None and result.eos["reason"] == "length"
    assert result.eos["usage"]["completion_tokens"] == tokens


def test_five_kills_during_twenty_streams_lose_nothing(daemon: DaemonProcess) -> None:
    def kill() -> None:
        for _ in range(5):
            os.kill(daemon.engine_pid(), signal.SIGKILL)
            time.sleep(0.15)

    with daemon.client() as client:
        for i in range(20):
            client.ask(f"r{i}", f"prompt {i}", max_tokens=150)
        client.wait_tokens("r0", 10)
        killer = threading.Thread(target=kill)
        killer.start()
        client.finish()
        killer.join()
        for i in range(20):
            exact(client.results[f"r{i}"], f"prompt {i}", 150)
    assert daemon.metrics()["engine_restarts_total"] == 5


def test_stop_strings_and_text_hold_over_a_restart(daemon: DaemonProcess) -> None:
    whole = answer("prompt", 200).decode("utf-8", "ignore")
    stop = whole[70:76]
    with daemon.client() as client:
        client.ask("a", "prompt", max_tokens=200, stop=stop)
        for count in (5, 15, 25):
            client.wait_tokens("a", count)
            os.kill(daemon.engine_pid(), signal.SIGKILL)
        (result,) = client.finish()
        assert result.text == whole[: whole.index(stop)]


def test_counts_of_drafts_add_up_over_a_restart(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "[draft@3]", max_tokens=100)
        client.wait_tokens("a", 60)
        os.kill(daemon.engine_pid(), signal.SIGKILL)
        (result,) = client.finish()
    exact(result, "[draft@3]", 100)
    assert result.eos is not None
    usage = result.eos["usage"]
    # every second token, but for those of the tick that was cut short
    assert abs(usage["accepted_tokens"] - 50) <= 2
    assert abs(usage["drafted_tokens"] - 150) <= 6


@pytest.mark.parametrize("how", ["abort", "exit", "hang"])
def test_only_the_culprit_gets_the_error(daemon: DaemonProcess, how: str) -> None:
    with daemon.client() as client:
        for i in range(6):
            client.ask(f"r{i}", f"prompt {i}", max_tokens=60)
        client.ask("bad", f"[{how}@8]", max_tokens=60)
        client.finish()
        while client.results["bad"].eos is None:
            client.receive()
        bad = client.results["bad"]
        assert bad.error is not None and bad.error["code"] == "E_RUNTIME_001"
        assert bytes(bad.tokens) == answer(f"[{how}@8]", 8)
        assert bad.eos is not None and bad.eos["reason"] == "error"
        assert bad.eos["usage"]["completion_tokens"] == 8
        for i in range(6):
            exact(client.results[f"r{i}"], f"prompt {i}", 60)
    assert daemon.metrics()["engine_restarts_total"] == 2


@pytest.mark.parametrize("how", ["abort-once", "hang-once"])
def test_one_fault_errors_nobody(daemon: DaemonProcess, how: str) -> None:
    prompt = f"[{how}@8]"
    with daemon.client() as client:
        client.ask("a", "beside it", max_tokens=40)
        client.ask("b", prompt, max_tokens=40)
        client.finish()
        exact(client.results["a"], "beside it", 40)
        exact(client.results["b"], prompt, 40)
    assert daemon.metrics()["engine_restarts_total"] == 1


def test_stopped_engine_is_a_hung_engine(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "stopped", max_tokens=100)
        client.wait_tokens("a", 3)
        os.kill(daemon.engine_pid(), signal.SIGSTOP)
        (result,) = client.finish()
        exact(result, "stopped", 100)


def test_messages_to_an_engine_that_is_stuck_are_no_sign_of_its_life(daemon: DaemonProcess) -> None:
    """It is stuck outside a tick, and others go on asking."""
    with daemon.client() as client, daemon.client() as other:
        pid = daemon.engine_pid()
        client.ask("a", "stuck", max_tokens=300)
        client.wait_tokens("a", 3)
        other.send(type="tokenize", text="[stall]")
        deadline = time.monotonic() + 20
        lanes = itertools.cycle(("background", "interactive"))
        while psutil.pid_exists(pid) and time.monotonic() < deadline:
            client.send(type="priority", id="a", priority=next(lanes))
            time.sleep(0.05)
        assert not psutil.pid_exists(pid), "the engine was never given up"
        (result,) = client.finish()
        exact(result, "stuck", 300)


def test_an_engine_that_handles_no_message_is_replaced(daemon: DaemonProcess) -> None:
    """Nothing runs; what is asked is no request."""
    with daemon.client() as client:
        client.send(type="tokenize", text="[stall]")
        event = client.answer("tokens")
        assert event["code"] == "E_RUNTIME_001" and "this text brought" in event["message"]
        exact(client.generate("next", max_tokens=5), "next", 5)


def test_a_load_that_says_nothing_any_more_is_ended(tmp_path: Path) -> None:
    hangs = model_file(tmp_path / "load-hangs.gguf")
    with DaemonProcess(tmp_path, patch=impatient) as daemon, daemon.client() as admin:
        engine = daemon.engine_pid()
        admin.send(type="load", model=hangs)
        front = daemon.process.pid
        eventually(lambda: len(engines_of(front)) == 2)
        event = admin.answer("loaded")
        assert event["code"] == "E_MODEL_002" and "hung, and was killed" in event["message"]
        eventually(lambda: len(engines_of(front)) == 1)
        assert daemon.engine_pid() == engine
        with daemon.client() as client:
            exact(client.generate("x", max_tokens=5), "x", 5)


def test_requests_wait_while_an_engine_is_replaced(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        os.kill(daemon.engine_pid(), signal.SIGKILL)
        exact(client.generate("at once", max_tokens=20), "at once", 20)


def test_cancel_while_the_engine_is_gone(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "cancelled", max_tokens=300)
        client.wait_tokens("a", 3)
        pid = daemon.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        client.send(type="cancel", id="a")
        os.kill(pid, signal.SIGKILL)
        (result,) = client.finish()
        assert result.eos is not None and result.eos["reason"] == "cancel"
        assert bytes(result.tokens) == answer("cancelled", len(result.tokens))


def test_engine_ends_with_its_front(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        engine = psutil.Process(daemon.engine_pid())
        daemon.expected = -signal.SIGKILL
        daemon.process.kill()
        assert daemon.process.wait() == -signal.SIGKILL
        psutil.wait_procs([engine], timeout=20)
        assert not engine.is_running()
        # what the kill left behind stands in nobody's way
        with DaemonProcess(tmp_path) as second, second.client() as client:
            exact(client.generate("next", max_tokens=5), "next", 5)


def test_kills_of_a_request_that_is_alone_and_goes_on(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "lonely", max_tokens=200)
        for kill in range(10):
            client.wait_tokens("a", 15 * (kill + 1))
            os.kill(daemon.engine_pid(), signal.SIGKILL)
        (result,) = client.finish()
        exact(result, "lonely", 200)


def test_kills_while_the_next_engine_loads(tmp_path: Path) -> None:
    model = model_file(tmp_path / "load-slow.gguf")
    with (
        DaemonProcess(tmp_path, model=model, environment=SLOW) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "patient", max_tokens=60)
        client.wait_tokens("a", 3)
        killed: set[int] = set()
        while len(killed) < 5:
            for process in engines_of(daemon.process.pid):
                if process.pid not in killed:
                    process.kill()
                    killed.add(process.pid)
        (result,) = client.finish()
        exact(result, "patient", 60)


@pytest.mark.parametrize(
    ("name", "why"), [("load-fails", "on purpose"), ("load-aborts", "SIGABRT")]
)
def test_first_model_that_cannot_be_served(tmp_path: Path, name: str, why: str) -> None:
    model = model_file(tmp_path / f"{name}.gguf")
    with DaemonProcess(tmp_path, model=model, wait=False) as daemon:
        daemon.expected = 1
        assert daemon.wait() == 1
        assert why in daemon.log
        assert daemon.log.count("error:") == 1
