"""A client of HTTP that leaves frees its row at the next tick, in the prompt and in the stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.gateway import begun, post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
PROMPT_TICKS = 5


def body_of(path: str, prompt: str) -> dict[str, Any]:
    if path == TEXT:
        return {"prompt": prompt, "max_tokens": 2000}
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2000}


def the_session(daemon: DaemonProcess) -> dict[str, Any]:
    (session,) = daemon.info()["sessions"]
    return session


class Stepped(NamedTuple):
    """A daemon whose engine makes a tick when it is told to, and not before."""

    daemon: DaemonProcess
    pipe: int

    def step(self, ticks: int) -> None:
        os.write(self.pipe, b"x" * ticks)

    def counted(self, name: str) -> int:
        return int(self.daemon.metrics()[f"{name}_total"])


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepped]:
    folder = tmp_path_factory.mktemp("stepped")
    os.mkfifo(folder / "steps")
    pipe = os.open(folder / "steps", os.O_RDWR)
    environment = {"FAKE_STEPS": str(folder / "steps"), "FAKE_TICK_MS": "0"}
    with DaemonProcess(folder, http="127.0.0.1:0", environment=environment) as daemon:
        yield Stepped(daemon, pipe)
    os.close(pipe)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [TEXT, CHAT, MESSAGES])
@pytest.mark.parametrize("ticks", [2, PROMPT_TICKS + 3], ids=["prompt", "answer"])
def test_one_tick_after_its_client_has_left_a_row_is_free(
    stepped: Stepped, path: str, stream: bool, ticks: int
) -> None:
    daemon = stepped.daemon
    before, made = stepped.counted("batch_calls"), stepped.counted("tokens_generated")
    body = {**body_of(path, f"[prompt@{PROMPT_TICKS}] x"), "stream": stream}
    tokens = max(0, ticks - PROMPT_TICKS)
    with begun(port_of(daemon), path, body):
        eventually(lambda: daemon.info()["sessions"])
        stepped.step(ticks)
        eventually(lambda: stepped.counted("batch_calls") == before + ticks)
        eventually(lambda: the_session(daemon)["tokens"] == tokens)
    # the front has told the engine, which ticks no more by itself
    eventually(lambda: the_session(daemon)["state"] == "ending")
    stepped.step(1)
    daemon.idle()
    assert stepped.counted("batch_calls") <= before + ticks + 1
    assert stepped.counted("tokens_generated") <= made + tokens + 1


def test_a_prompt_whose_client_has_left_is_not_computed_to_its_end(tmp_path: Path) -> None:
    """With the real library, whose ticks a cancel cuts short."""
    with real(tmp_path, http="127.0.0.1:0", n_ctx=16384) as daemon:
        port, words = port_of(daemon), "".join(f"word {n} is here; " for n in range(800))
        with begun(port, TEXT, {**body_of(TEXT, words), "stream": True}):
            length = eventually(
                lambda: (s := daemon.info()["sessions"]) and s[0]["kv_cells"] and s[0]
            )["prompt_tokens"]
        daemon.idle()
        assert 0 < daemon.metrics()["prompt_tokens_computed_total"] < length
        assert post(port, TEXT, {"prompt": "x", "max_tokens": 3}).status == 200
