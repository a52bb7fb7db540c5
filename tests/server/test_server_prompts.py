"""Prompts as text and as token ids, who asks, and what is echoed: the front with a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, RawClient, Result, engines_of, running

LOST = "[abort-once@3]"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from running(tmp_path_factory.mktemp("daemon"), environment={"FAKE_TICK_MS": "5"})


def of_tokens(client: RawClient, text: str, id: str = "a", **fields: object) -> Result:
    client.results[id] = Result()
    client.send(id=id, tokens=list(text.encode()), **fields)
    return client.finish(id)[0]


def test_limits_are_those_of_the_context_where_nobody_set_them(daemon: DaemonProcess) -> None:
    info = daemon.info()
    assert info["model"]["n_ctx"] == info["limits"]["max_tokens"] == 4096
    assert info["limits"]["max_prompt_bytes"] == 65536
    assert info["limits"]["max_frame_bytes"] == 2 * 65536


def test_a_prompt_as_token_ids(client: RawClient) -> None:
    result = of_tokens(client, "hello", max_tokens=20)
    assert bytes(result.tokens) == answer("hello", 20)
    assert result.eos is not None
    assert result.eos["usage"] == {
        "prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 20,
    }  # fmt: skip


def test_a_prompt_of_ids_survives_its_engine(client: RawClient) -> None:
    text = f"go on {LOST}"
    assert bytes(of_tokens(client, text, max_tokens=10).tokens) == answer(text, 10)


def test_the_prompt_comes_before_the_answer(client: RawClient) -> None:
    client.ask("a", "héllo", max_tokens=3, echo=True)
    client.finish("a")
    (event,) = client.other
    assert event == {
        "id": "a", "event": "echo", "text": "héllo", "tokens": list("héllo".encode()),
    }  # fmt: skip
    assert bytes(client.results["a"].tokens) == answer("héllo", 3)


def test_it_comes_once_though_the_engine_dies(client: RawClient) -> None:
    client.ask("a", f"again {LOST}", max_tokens=6, echo=True)
    client.finish("a")
    assert [event["event"] for event in client.other] == ["echo"]


@pytest.mark.parametrize("fields", [{}, {"stop": ["never there"]}, {"logprobs": 1}])
def test_an_answer_in_one_piece_has_the_prompt_in_its_text(
    client: RawClient, fields: dict[str, object]
) -> None:
    plain = client.generate("hello", "a", max_tokens=5, stream=False)
    echoed = client.generate("hello", "b", max_tokens=5, stream=False, echo=True, **fields)
    ids = of_tokens(client, "hello", "c", max_tokens=5, stream=False, echo=True, **fields)
    assert plain.eos is not None and echoed.eos is not None and ids.eos is not None
    assert echoed.eos["text"] == ids.eos["text"] == "hello" + plain.eos["text"]
    assert echoed.eos["usage"] == plain.eos["usage"]


def test_an_echo_without_an_answer(client: RawClient) -> None:
    result = client.generate("[stop@0]", "a", max_tokens=5, stream=False, echo=True)
    assert result.eos is not None
    assert (result.eos["reason"], result.eos["text"]) == ("stop", "[stop@0]")
    assert result.eos["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_takes_too_long_ends_after_a_line(
    client: RawClient, stream: bool
) -> None:
    whole = answer("take your time", 4000)
    line = whole.index(b"\n") + 1
    result = client.generate(
        "take your time", max_tokens=4000, t_max_predict_ms=1, stream=stream, return_tokens=True
    )
    assert result.eos is not None and result.eos["reason"] == "length"
    tokens = bytes(result.tokens if stream else result.eos["tokens"])
    assert len(tokens) == result.eos["usage"]["completion_tokens"] == line
    assert tokens == whole[:line]
    cut = client.generate("take your time", "b", max_tokens=line + 9, t_max_predict_ms=10**6)
    assert len(cut.tokens) == line + 9


# --- the beginning -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{}, {"stop": ["never there"]}, {"stream": False}, {"messages": True}]
)
@pytest.mark.parametrize("prompt", ["hello", "[stop@0]", f"again {LOST}"])
def test_the_beginning_is_told_once(
    client: RawClient, prompt: str, fields: dict[str, object]
) -> None:
    if "messages" in fields:
        messages = [{"role": "user", "content": prompt}]
        client.results["a"] = Result()
        client.send(id="a", messages=messages, max_tokens=6, begin=True, priority="background")
    else:
        client.ask("a", prompt, max_tokens=6, begin=True, priority="background", **fields)
    first = client.receive()
    (result,) = client.finish("a")
    assert result.eos is not None and client.other == [first]
    counts = result.eos["usage"]
    assert first == {
        "id": "a", "event": "begin", "lane": "background", "lane_reason": "asked for",
        "deltas": False, "model": "model",
        "usage": {"prompt_tokens": counts["prompt_tokens"], "cached_tokens": 0},
    }  # fmt: skip
    assert counts["prompt_tokens"] >= len(prompt)


def test_the_beginning_is_told_to_who_asks_for_it(client: RawClient) -> None:
    client.generate("hello", "a", max_tokens=3)
    assert not client.other
    client.generate("hello", "b", max_tokens=3, begin=True)
    assert client.other[0]["lane_reason"] == "nobody named a lane"


def test_the_beginning_is_told_while_the_prompt_is_computed(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, daemon.client() as client:
        client.ask("a", "[hang-once@0]", max_tokens=3, begin=True)
        assert (client.receive() or {})["event"] == "begin"
        assert not client.results["a"].tokens
        engines_of(daemon.process.pid)[0].kill()
        (result,) = client.finish("a")
        assert len(result.tokens) == 3 and len(client.other) == 1


def test_how_much_of_a_prompt_is_computed_is_told_to_who_asks_for_it(client: RawClient) -> None:
    prompt = "[prompt@400]" + "x" * 100
    client.generate(prompt, "a", max_tokens=2, progress=True)
    told = [event["processed"] for event in client.other]
    assert client.other[0] == {"id": "a", "event": "progress", "processed": told[0]}
    assert len(told) > 1 and told == sorted(set(told))
    assert told[0] > 0 and told[-1] < len(prompt)
    client.other.clear()
    client.generate(prompt, "b", max_tokens=2, progress=True, begin=True, stream=False)
    assert [event["event"] for event in client.other[:2]] == ["begin", "progress"]
    client.other.clear()
    client.generate(prompt, "c", max_tokens=2)
    assert not client.other


def test_the_beginning_says_that_somebody_moved_it(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, max_sessions=1) as daemon, daemon.client() as client:
        client.ask("long", "hello", max_tokens=3000)
        client.wait_tokens("long", 1)
        client.ask("a", "hello", max_tokens=3, begin=True)
        client.send(type="priority", id="a", priority="background")
        assert client.answer("priority")["priority"] == "background"
        client.send(type="cancel", id="long")
        client.finish("a")
        (begin,) = [event for event in client.other if event["event"] == "begin"]
        assert (begin["lane"], begin["lane_reason"]) == ("background", "moved there")


def test_who_asks_is_a_name_or_the_process(daemon: DaemonProcess, client: RawClient) -> None:
    client.ask("a", "hello", max_tokens=3000, app="my editor", cache_scope="private")
    client.ask("b", "hello", max_tokens=3000, session="window 2")
    client.wait_tokens("a", 1)
    client.wait_tokens("b", 1)
    sessions = {row["id"]: row for row in daemon.info()["sessions"]}
    assert sessions["a"]["app"] == "my editor"
    assert sessions["b"]["app"] == psutil.Process().name()[:15]
    assert [sessions[id]["cache_scope"] for id in "ab"] == ["private", "shared"]
    assert [sessions[id]["session"] for id in "ab"] == [None, "window 2"]
    for id in "ab":
        client.send(type="cancel", id=id)
    client.finish()


def test_an_error_names_who_asked(daemon: DaemonProcess, client: RawClient) -> None:
    result = client.generate("[reject]", "lost", app="my editor")
    assert result.error is not None
    client.send(type="metrics", sessions=True)
    (entry,) = [e for e in client.answer("metrics")["errors"] if e["request"] == "lost"]
    assert entry["app"] == "my editor"


def test_token_ids_to_text(client: RawClient) -> None:
    client.send(type="detokenize", id="d", tokens=list("héé".encode()[:4]))
    assert client.answer("text") == {"id": "d", "event": "text", "text": "hé�"}
    client.send(type="detokenize", tokens=[])
    assert client.answer("text") == {"event": "text", "text": ""}
    many = list(b"word " * 2500)
    client.send(type="detokenize", tokens=many)
    assert client.answer("text")["text"] == "word " * 2500
    client.send(type="detokenize", id="e", tokens=[104, 257])
    error = client.answer("text")
    assert (error["event"], error["id"], error["code"]) == ("error", "e", "E_PROTO_003")
    assert '"tokens" names token 257; the vocabulary has 257' in error["message"]


def test_nothing_to_spell_with_without_a_model(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, daemon.client() as client:
        client.send(type="unload")
        client.answer("unloaded")
        client.send(type="detokenize", tokens=[1])
        assert client.answer("text")["code"] == "E_MODEL_001"
