"""Log-probabilities of tokens that are parts of characters, and of tokens without text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from umaserve import llama
from umaserve.client import Client, Token

ANSWER = "a😀é"
COUNT = 20
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def pieces(model: llama.Model) -> list[tuple[int, bytes]]:
    """The tokens of `ANSWER` and of a control token."""
    texts = (ANSWER, "<|fim_prefix|>")
    ids = [token for text in texts for token in model.tokenize(text, add_special=False)]
    found = [(token, model.token_to_piece_bytes(token)) for token in ids]
    assert b"".join(piece for _, piece in found) == ANSWER.encode() and len(set(ids)) == 8
    return found


@pytest.fixture(scope="module")
def asked(pieces: list[tuple[int, bytes]]) -> dict[str, Any]:
    return {
        "max_tokens": len(pieces),
        "temperature": 0,
        "repeat_penalty": 10.0,
        "penalty_last_n": -1,
        "logit_bias": [[token, 1000 - 40 * k] for k, (token, _) in enumerate(pieces)],
    }


@pytest.mark.parametrize("stream", [True, False])
def test_the_socket(daemon, pieces, asked, stream: bool) -> None:
    if stream:
        with Client(daemon.path) as client:
            events = list(client.generate("x = ", **asked, logprobs=COUNT))
        entries = [event._asdict() for event in events if isinstance(event, Token)]
    else:
        with daemon.client() as raw:
            result = raw.generate("x = ", "a", **asked, logprobs=COUNT, stream=False)
        entries = result.eos["logprobs"]
    assert [(each["token_id"], bytes(each["bytes"])) for each in entries] == pieces
    assert entries[-1]["token"] == "<|fim_prefix|>" and entries[-1]["text"] == ""
    assert entries[0]["token"] == "a" and entries[1]["token"] == "\ufffd"
    for entry in entries:
        check_ranks(entry, [(each["token_id"],) for each in entry["top_logprobs"]])


def test_the_socket_tells_the_prompt(daemon, model: llama.Model) -> None:
    with daemon.client() as client:
        client.send(id="p", prompt=ANSWER, prompt_logprobs=COUNT, max_tokens=0)
        client.answer("eos")
        told = [each for event in client.other for each in event.get("logprobs", ())]
    assert b"".join(bytes(each["bytes"]) for each in told) == ANSWER.encode()
    for entry in told[1:]:
        check_ranks(entry, [(each["token_id"],) for each in entry["top_logprobs"]])
        for each in entry["top_logprobs"]:
            own = model.token_to_piece_bytes(each["token_id"]) or each["text"].encode()
            assert bytes(each["bytes"]) == own


@pytest.mark.parametrize("stream", [True, False])
def test_chat(daemon, pieces, asked, stream: bool) -> None:
    body = {**asked, "messages": [{"role": "user", "content": "x"}], "stream": stream}
    body |= {"logprobs": True, "top_logprobs": COUNT}
    choices = chunks(post(port_of(daemon), "/v1/chat/completions", body), stream)
    rated = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    told = [each for logprobs in rated for each in logprobs["content"]]
    assert [bytes(each["bytes"]) for each in told] == [piece for _, piece in pieces]
    assert [each["token"] for each in told] == [
        "a", *(f"\\x{byte:02x}" for byte in "😀é".encode()), "<|fim_prefix|>",
    ]  # fmt: skip
    for entry in told:
        check_ranks(entry, [(each["token"], *each["bytes"]) for each in entry["top_logprobs"]])


@pytest.mark.parametrize("stream", [True, False])
def test_completions(daemon, pieces, asked, stream: bool) -> None:
    body = {**asked, "prompt": "x", "logprobs": COUNT, "stream": stream}
    choices = chunks(post(port_of(daemon), "/v1/completions", body), stream)
    choices = [choice for choice in choices if choice["logprobs"]]
    assert "".join(choice["text"] for choice in choices) == ANSWER
    names = ("tokens", "text_offset", "top_logprobs")
    told = {name: [each for c in choices for each in c["logprobs"][name]] for name in names}
    assert told["tokens"] == [
        "a", *(f"bytes:\\x{byte:02x}" for byte in "😀é".encode()), "<|fim_prefix|>",
    ]  # fmt: skip
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2, 2, 3]
    for top in told["top_logprobs"]:
        assert len(top) == COUNT and list(top.values()) == sorted(top.values(), reverse=True)


@pytest.mark.parametrize("prompt", ["😀é😀é", "x = "])
def test_a_greedy_token_is_the_likeliest_of_its_alternatives(daemon, prompt: str) -> None:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "logprobs": 5, "echo": True}
    reply = post(port_of(daemon), "/v1/completions", {**body, "ignore_eos": True})
    told = reply.json["choices"][0]["logprobs"]
    names = ("tokens", "token_logprobs", "top_logprobs")
    rows = list(zip(*(told[name] for name in names), strict=True))[1:]
    for token, value, top in rows:
        assert len(top) == 5 and max(top.values()) >= value
        assert token not in top or top[token] == value
    for token, _, top in rows[-8:]:
        assert max(top, key=lambda name: top[name]) == token


@pytest.mark.parametrize("stream", [True, False])
def test_completion(daemon, pieces, asked, stream: bool) -> None:
    body = {**asked, "prompt": "x", "n_probs": COUNT, "stream": stream}
    reply = post(port_of(daemon), "/completion", body)
    answers = sse(reply.body) if stream else [reply.json]
    told = [each for answer in answers for each in answer.get("completion_probabilities", ())]
    assert [(each["id"], bytes(each["bytes"])) for each in told] == pieces
    # as llama-server cuts it: nothing of an unfinished character, and no names
    texts = ["a", "", "\ufffd", "\ufffd", "\ufffd", "", "\ufffd", ""]
    assert [each["token"] for each in told] == texts
    for entry in told:
        check_ranks(entry, [(each["id"],) for each in entry["top_logprobs"]])


def chunks(reply: Any, stream: bool) -> list[Entry]:
    answers = sse(reply.body) if stream else [reply.json]
    return [choice for each in answers if isinstance(each, dict) for choice in each["choices"]]


def check_ranks(entry: Entry, names: list[tuple[Any, ...]]) -> None:
    values = [each["logprob"] for each in entry["top_logprobs"]]
    assert values == sorted(values, reverse=True) and entry["logprob"] <= values[0]
    assert len(names) == len(set(names)) == COUNT
