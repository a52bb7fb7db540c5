"""The daemon's own code fails on one request: that one ends with an error, the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import answer
from tests.support.patches.front import own_faults
from tests.support.server_harness import DaemonProcess, RawClient, Result
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.log.lines import Log

TOKENS = 60


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    settings: dict[str, Any] = {"n_ctx": 1024, "patch": own_faults}
    environment = {"FAKE_TICK_MS": "5"}
    with DaemonProcess(tmp_path, environment=environment, **settings) as daemon:
        daemon.clean = False
        yield daemon
        daemon.idle()
        with daemon.client() as client:
            exact(client.generate("afterwards", max_tokens=5), "afterwards", 5)
        assert daemon.metrics()["engine_restarts_total"] == 0
        assert "OwnFault: on purpose" in daemon.log


def exact(result: Result, prompt: str, tokens: int = TOKENS) -> None:
    assert result.error is None and result.eos is not None
    assert bytes(result.tokens) == answer(prompt, tokens)


def with_others(daemon: DaemonProcess, id: str, **fields: Any) -> Result:
    """The result of that request; others, on its connection and on another, are as ever."""
    with daemon.client() as client, daemon.client() as other:
        client.ask("good", "good", max_tokens=TOKENS)
        other.ask("too", "too", max_tokens=TOKENS)
        client.wait_tokens("good", 2)
        client.ask(id, "x", **{"max_tokens": TOKENS // 2, **fields})
        client.ask("late", "late", max_tokens=TOKENS)
        client.finish()
        other.finish()
        for id_ in ("good", "late"):
            exact(client.results[id_], id_)
        exact(other.results["too"], "too")
        return client.results[id]


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        (how, fields)
        for how in ("bad-text", "bad-token", "bad-rest", "bad-submit")
        for fields in ({}, {"stop": ["zzz"]}, {"stream": False})
        if (how, fields) != ("bad-token", {"stream": False})  # none of them is sent
    ],
)
def test_a_request_that_we_fail_on_ends_alone(
    daemon: DaemonProcess, how: str, fields: dict[str, Any]
) -> None:
    result = with_others(daemon, how, **fields)
    assert result.error is not None and result.error["code"] == "E_RUNTIME_001"
    assert "inside the daemon (OwnFault: on purpose)" in result.error["message"]
    assert f"request '{how}' failed inside the daemon" in daemon.log


@pytest.mark.parametrize("how", ["bad-count", "bad-ticks"])
def test_what_cannot_be_counted_is_served(daemon: DaemonProcess, how: str) -> None:
    tokens = 4 * TOKENS  # ticks are counted some times a second
    exact(with_others(daemon, how, max_tokens=tokens), "x", tokens)


def test_a_client_that_cannot_be_told_sees_its_connection_close(daemon: DaemonProcess) -> None:
    with daemon.client() as client, daemon.client() as other:
        other.ask("good", "good", max_tokens=TOKENS)
        client.ask("bad-end", "x", max_tokens=10)
        while client.receive() is not None:
            pass
        other.finish()
        exact(other.results["good"], "good")


def test_a_question_that_fails_is_answered(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("bad-score", "x", max_tokens=TOKENS)
        client.wait_tokens("bad-score", 1)
        for interval in ({}, {"interval_ms": 100}):
            client.send(type="metrics", id="m", **interval)
            event = client.answer("metrics")
            assert event["event"] == "error" and event["id"] == "m"
            assert "inside the daemon" in event["message"]
        client.finish()
        exact(client.results["bad-score"], "x")


def test_a_lock_that_is_in_disorder_does_not_raise() -> None:
    """trio drops an instrument that raises."""
    lock = LoopLock()
    lock.before_io_wait(0.0)  # nobody has it
    lock.after_io_wait(0.0)
    lock.after_io_wait(0.0)  # this thread has it
    assert lock.held.locked()
    lock.after_run()
    lock.after_run()
    assert not lock.held.locked()


def test_a_log_that_cannot_write_a_line_does_not_raise() -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise ValueError("I/O operation on closed file")

    log = Log("info", True, Closed())  # type: ignore[arg-type]
    log("info", "one", request=RawClient)  # nothing that JSON knows
    log.on_trouble = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    log("error", "two")
