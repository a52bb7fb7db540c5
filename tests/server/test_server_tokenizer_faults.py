"""Texts that take the engine down while they are tokenised: whoever sent them pays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, eventually

TIMES = 8  # an innocent stream was ended after seven


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, environment={"FAKE_TICK_MS": "5"}, n_ctx=4096) as daemon:
        yield daemon
        daemon.idle()


def test_a_tokenize_that_ends_the_engine_gets_the_error_and_no_stream_does(
    daemon: DaemonProcess,
) -> None:
    with daemon.client() as client, daemon.client() as other:
        client.ask("stream", "an innocent prompt", max_tokens=2000)
        client.wait_tokens("stream", 3)
        for i in range(TIMES):
            other.send(type="tokenize", id=f"t{i}", text="[crash]")
            answered = other.answer("tokens")
            assert answered["code"] == "E_RUNTIME_001", answered
            assert "this text brought the engine down" in answered["message"]
            other.send(type="tokenize", id=f"u{i}", text="fine")
            assert other.answer("tokens")["tokens"] == list(b"fine")
        client.send(type="cancel", id="stream")
        client.finish()
        result = client.results["stream"]
        assert result.error is None and result.eos["reason"] == "cancel"
        n = len(result.tokens)
        assert bytes(result.tokens) == answer("an innocent prompt", n)


def test_a_tokenize_whose_sender_left_is_still_what_is_blamed(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("stream", "an innocent prompt", max_tokens=2000)
        client.wait_tokens("stream", 3)
        for i in range(TIMES):
            before = daemon.engine_pid()
            with daemon.client() as other:
                other.send(type="tokenize", id="t", text="[crash]")
                for _ in range(10):  # by then the engine has the text
                    other.send(type="ping")
                    other.answer("pong")
            eventually(lambda before=before: daemon.engine_pid() != before, "another engine")
            client.wait_tokens("stream", 6 + 3 * i)
        client.send(type="cancel", id="stream")
        client.finish()
        assert client.results["stream"].error is None


def test_a_prompt_that_ends_the_engine_in_the_tokenizer_pays_alone(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for i in range(4):
            client.ask(f"s{i}", f"prompt {i}", max_tokens=400)
        client.wait_tokens("s0", 3)
        client.ask("bad", "[tokenizer-abort]", max_tokens=3)
        client.finish()
        assert client.results["bad"].error["code"] == "E_RUNTIME_001"
        for i in range(4):
            result = client.results[f"s{i}"]
            assert result.error is None
            assert bytes(result.tokens) == answer(f"prompt {i}", 400)
