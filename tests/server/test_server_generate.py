"""Requests for text over the real socket: what a client gets when nothing fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, RawClient, Result, running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), n_ctx=1024, max_tokens=600)


def test_tokens_come_in_order_and_whole(client: RawClient) -> None:
    client.ask("a", "hello", max_tokens=200)
    parts = []
    while not client.results["a"].ended:
        event = client.receive()
        assert event is not None
        if event["event"] == "token":
            assert set(event) == {"id", "event", "text", "token_id"}
            parts.append(event["text"])
    expected = answer("hello", 200)
    result = client.results["a"]
    assert bytes(result.tokens) == expected
    assert result.text == expected.decode("utf-8", "replace")
    assert all(set(part) <= set(expected.decode("utf-8", "ignore")) for part in parts[:-1])
    assert result.eos is not None
    assert result.eos["reason"] == "length"
    assert result.eos["usage"] == {
        "prompt_tokens": 5,
        "cached_tokens": 0,
        "completion_tokens": 200,
    }
    timings = result.eos["timings"]
    assert 0 <= timings["queue_ms"] <= timings["ttft_ms"] <= timings["total_ms"]
    assert 0 < timings["tbt_p50_ms"] <= timings["tbt_p95_ms"]


def test_drafted_tokens_are_told_at_the_end(daemon: DaemonProcess, client: RawClient) -> None:
    drafted = client.generate("[draft@4]", max_tokens=60)
    assert bytes(drafted.tokens) == answer("[draft@4]", 60)
    assert drafted.eos is not None
    counts = {"drafted_tokens": 120, "accepted_tokens": 30}
    assert drafted.eos["usage"] == {
        "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 60, **counts,
    }  # fmt: skip
    assert daemon.info()["model"]["why_no_drafts"] == "it is a fake"
    newest = daemon.info()["recent"][-1]
    assert {name: newest[name] for name in counts} == counts
    without = client.generate("[draft@4]", max_tokens=60, speculate=False)
    assert without.tokens == drafted.tokens
    assert without.eos is not None and "drafted_tokens" not in without.eos["usage"]
    assert "drafted_tokens" not in daemon.info()["recent"][-1]


def test_end_of_text_is_stop(client: RawClient) -> None:
    result = client.generate("[stop@7]", max_tokens=50)
    assert bytes(result.tokens) == answer("[stop@7]", 7)
    assert result.eos is not None and result.eos["reason"] == "stop"


@pytest.mark.parametrize("length", [2, 5, 11])
def test_stop_string_never_shows(client: RawClient, length: int) -> None:
    whole = answer("with a stop", 300).decode("utf-8", "ignore")
    stop = whole[60 : 60 + length]
    cut = whole.index(stop)
    result = client.generate("with a stop", max_tokens=300, stop=[stop, "never there"])
    assert result.text == whole[:cut]
    assert result.eos is not None and result.eos["reason"] == "stop"
    assert result.eos["usage"]["completion_tokens"] == len(whole[: cut + length].encode())
    assert len(result.tokens) == result.eos["usage"]["completion_tokens"]


def unfinished(prompt: str) -> int:
    """How many tokens of the answer end within a character."""
    data = answer(prompt, 200)
    return next(n for n in range(20, 200) if data[n - 1] >= 0xC0)


def test_a_token_does_not_wait_for_its_character_to_be_whole(client: RawClient) -> None:
    """Nothing came after it; had it waited, U+FFFD would have gone out with it at the end."""
    n = unfinished("[error@99]")
    prompt = next(f"[error@{n}]{i}" for i in range(999) if unfinished(f"[error@{n}]{i}") == n)
    client.ask("a", prompt, max_tokens=100)
    texts = []
    while not client.results["a"].ended:
        event = client.receive()
        assert event is not None
        texts += [event["text"]] if event["event"] == "token" else []
    whole = answer(prompt, n)
    assert bytes(client.results["a"].tokens) == whole
    assert len(texts) == n and texts[-1] == "" and "".join(texts) == whole.decode("utf-8", "ignore")


@pytest.mark.parametrize("stream", [True, False])
def test_an_end_within_a_character(client: RawClient, stream: bool) -> None:
    n = unfinished("[stop@99]")
    prompt = next(f"[stop@{n}]{i}" for i in range(999) if unfinished(f"[stop@{n}]{i}") == n)
    data = answer(prompt, n)
    ended = client.generate(prompt, "a", max_tokens=100, stream=stream)
    cut = client.generate(prompt, "b", max_tokens=n, stream=stream)
    stopped = client.generate(prompt, "c", max_tokens=100, stream=stream, stop=["no such text"])
    if stream:
        assert [bytes(r.tokens) for r in (ended, cut, stopped)] == [data] * 3
        assert ended.text == stopped.text == data.decode("utf-8", "ignore")
        assert cut.text == data.decode("utf-8", "replace")
    else:
        texts = [r.eos["text"] for r in (ended, cut, stopped) if r.eos is not None]
        assert texts == [data.decode("utf-8", "replace")] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_names_the_stop_string(client: RawClient, stream: bool) -> None:
    whole = answer("with a stop", 300).decode("utf-8", "ignore")
    stops = [whole[62:65], whole[60:65], "never there"]
    result = client.generate("with a stop", max_tokens=300, stop=stops, stream=stream)
    assert result.eos is not None and result.eos["stop"] == whole[60:65]
    cut = client.generate("with a stop", "b", max_tokens=3, stop=stops, stream=stream)
    assert cut.eos is not None and "stop" not in cut.eos


def test_text_held_for_a_stop_string_comes_at_the_end(client: RawClient) -> None:
    whole = answer("held", 40).decode("utf-8", "ignore")
    tokens = len(whole.encode())
    result = client.generate("held", max_tokens=tokens, stop=whole[-3:] + "!")
    assert result.text == whole
    assert len(result.tokens) == tokens


def test_without_streaming_the_text_is_in_the_end(client: RawClient) -> None:
    result = client.generate("all at once", max_tokens=30, stream=False, metadata={"x": [1, None]})
    assert result.tokens == [] and result.eos is not None
    assert result.eos["text"] == answer("all at once", 30).decode("utf-8", "replace")
    assert result.eos["metadata"] == {"x": [1, None]}


def test_logprobs_as_asked(client: RawClient) -> None:
    client.ask("a", "with logprobs", max_tokens=3, logprobs=2)
    event = client.receive()
    assert event is not None and event["event"] == "token"
    assert event["logprob"] == -0.5
    assert event["top_logprobs"] == [
        {"token_id": 97, "text": "a", "bytes": [97], "logprob": -1.5},
        {"token_id": 98, "text": "b", "bytes": [98], "logprob": -1.5},
    ]
    client.finish()
    result = client.generate("with logprobs", "b", max_tokens=3, logprobs=0, stream=False)
    assert result.eos is not None
    assert [entry["logprob"] for entry in result.eos["logprobs"]] == [-0.5] * 3


def test_omitted_max_tokens_ends_at_a_limit(client: RawClient) -> None:
    result = client.generate("to the end")
    assert result.eos is not None and result.eos["reason"] == "length"
    assert len(result.tokens) == 600


def test_many_requests_on_one_connection(client: RawClient) -> None:
    for i in range(40):
        client.ask(f"r{i}", f"prompt {i}", max_tokens=20 + i)
    client.finish()
    for i in range(40):
        assert bytes(client.results[f"r{i}"].tokens) == answer(f"prompt {i}", 20 + i)


def test_chat_goes_through_the_template(client: RawClient) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    client.results["chat"] = Result()
    client.send(id="chat", messages=messages, max_tokens=10)
    (chat,) = client.finish("chat")
    assert bytes(chat.tokens) == answer("<s><system>be<user>hi", 10)


def test_refusal_of_the_template_names_messages(client: RawClient) -> None:
    client.results["chat"] = Result()
    client.send(id="chat", messages=[{"role": "user", "content": "refuse"}])
    (chat,) = client.finish("chat")
    assert chat.error is not None and chat.error["code"] == "E_PROTO_003"
    assert '"messages"' in chat.error["message"]
    assert client.generate("still here", max_tokens=2).eos is not None


def test_engine_error_is_an_error_and_an_end(client: RawClient) -> None:
    client.ask("bad", "[error@3]", max_tokens=9)
    client.ask("good", "beside it", max_tokens=9)
    client.finish()
    while client.results["bad"].eos is None:
        client.receive()
    bad, good = client.results["bad"], client.results["good"]
    assert bad.error is not None and bad.error["code"] == "E_RUNTIME_001"
    assert bad.error["message"] == "failed on purpose"
    assert bad.eos is not None and bad.eos["reason"] == "error"
    assert bytes(bad.tokens) == answer("[error@3]", 3)
    assert bytes(good.tokens) == answer("beside it", 9)


def test_rejected_by_the_engine(client: RawClient) -> None:
    result = client.generate("[reject]")
    assert result.error is not None and result.error["message"] == "rejected on purpose"
    result = client.generate("x" * 800, "b", max_tokens=300)
    assert result.error is not None and result.error["code"] == "E_LIMIT_003"


def test_cancel_ends_at_a_token_and_frees_the_id(client: RawClient) -> None:
    client.ask("a", "to cancel", max_tokens=600)
    client.wait_tokens("a", 5)
    client.send(type="cancel", id="a")
    (result,) = client.finish("a")
    assert client.answer("cancelled")["found"] is True
    assert result.eos is not None and result.eos["reason"] == "cancel"
    assert result.eos["usage"]["completion_tokens"] == len(result.tokens) < 600
    assert bytes(result.tokens) == answer("to cancel", len(result.tokens))
    assert len(client.generate("again", "a", max_tokens=3).tokens) == 3


def test_cancel_in_event_form_and_of_nothing(client: RawClient) -> None:
    client.ask("a", "to cancel", max_tokens=600)
    client.wait_tokens("a", 1)
    client.send(event="cancel", id="a")
    (result,) = client.finish("a")
    assert result.eos is not None and result.eos["reason"] == "cancel"
    client.other.clear()
    client.send(type="cancel", id="nobody")
    assert client.answer("cancelled") == {"id": "nobody", "event": "cancelled", "found": False}


def test_cancel_of_another_connections_request(daemon: DaemonProcess, client: RawClient) -> None:
    client.ask("elsewhere", "to cancel", max_tokens=600)
    client.wait_tokens("elsewhere", 1)
    with daemon.client() as other:
        other.send(type="cancel", id="elsewhere")
        assert other.answer("cancelled")["found"] is True
    (result,) = client.finish()
    assert result.eos is not None and result.eos["reason"] == "cancel"


def test_client_that_leaves_frees_its_rows(daemon: DaemonProcess) -> None:
    for _ in range(3):
        with daemon.client() as client:
            for i in range(32):
                client.ask(f"r{i}", f"prompt {i}", max_tokens=600)
            client.wait_tokens("r0", 1)
    daemon.idle()
    with daemon.client() as client:
        assert len(client.generate("after them", max_tokens=5).tokens) == 5


def test_half_closed_client_is_answered(client: RawClient) -> None:
    client.ask("a", "last words", max_tokens=100)
    client.socket.shutdown(socket.SHUT_WR)
    (result,) = client.finish()
    assert bytes(result.tokens) == answer("last words", 100)
    assert client.receive() is None


def test_queue_takes_interactive_first(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, max_sessions=1, max_queue=3) as daemon, daemon.client() as client:
        client.ask("running", "x", max_tokens=200)
        client.wait_tokens("running", 1)
        client.ask("back", "x", max_tokens=2, priority="background")
        client.ask("front", "x", max_tokens=2)
        client.ask("moved", "x", max_tokens=2, priority="background")
        client.send(type="priority", id="moved", priority="interactive")
        assert client.answer("priority")["priority"] == "interactive"
        client.ask("refused", "x", priority="background")
        assert client.finish("refused")[0].error["code"] == "E_LIMIT_002"
        order = []
        while len(order) < 4:
            event = client.receive()
            if event["event"] == "eos":
                order.append(event["id"])
        assert order == ["running", "front", "moved", "back"]
        assert client.generate("room again", max_tokens=2).eos is not None


def test_queued_background_is_not_passed_for_ever(tmp_path: Path) -> None:
    """Interactive requests always wait; the one row goes to background once it has waited long."""
    with DaemonProcess(tmp_path, max_sessions=1) as daemon, daemon.client() as client:
        client.ask("back", "x", max_tokens=100, priority="background")
        client.ask("0", "x", max_tokens=100)
        client.ask("late", "x", max_tokens=2, priority="background")
        order: list[str] = []
        asked, begun = 1, time.monotonic()
        while "late" not in order:
            assert time.monotonic() < begun + 60
            while asked < len(order) + 3:
                client.ask(str(asked), "x", max_tokens=100)
                asked += 1
            event = client.receive()
            assert event is not None
            if event["event"] == "eos":
                order.append(event["id"])
        assert order[0] == "back"  # it had the row, and keeps it
        assert order.index("late") > 1  # interactive first
        client.finish()
