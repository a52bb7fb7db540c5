"""Embeddings and rated prompts over the socket, by a daemon with the real engine."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient, eventually
from tests.support.small_models import write_model
from tests.support.whole_texts import assert_near, cosine, logprobs, pooled
from umaserve import llama
from umaserve.client import Client

TEXT = "def area(r):\n    return 3.14 * r * r\n" * 5


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def embed(client: RawClient, **fields: Any) -> dict[str, Any]:
    client.send(type="embed", **fields)
    return client.answer("embeddings")


def test_vectors_of_texts_and_tokens(client: RawClient, model: llama.Model) -> None:
    texts = [TEXT, "x", "class A:"]
    tokens = [model.tokenize(text) for text in texts]
    expected = [pooled(model, each, "last") for each in tokens]
    answer = embed(client, id="e", input=texts)
    assert answer["id"] == "e"
    count = sum(map(len, tokens))
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    mixed = embed(client, input=[texts[0], *tokens[1:]])
    for given in (answer, embed(client, input=tokens), mixed):
        pairs = zip(given["embeddings"], expected, strict=True)
        assert all(cosine(vector, other) > 0.9999 for vector, other in pairs)
    for one in (texts[0], tokens[0]):
        (vector,) = embed(client, input=one)["embeddings"]
        assert cosine(vector, expected[0]) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
    (encoded,) = embed(client, input=texts[0], encoding_format="base64")["embeddings"]
    numbers = np.frombuffer(base64.b64decode(encoded), "<f4")
    assert numbers.size == model.n_embd and cosine(numbers, expected[0]) > 0.9999


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, "E_PROTO_003", '"input" is missing'),
        ({"input": ""}, "E_PROTO_003", "input"),
        ({"input": []}, "E_PROTO_003", "input"),
        ({"input": ["x", ""]}, "E_PROTO_003", "input"),
        ({"input": ["x", []]}, "E_PROTO_003", "input"),
        ({"input": ["x", 5]}, "E_PROTO_003", "input"),
        ({"input": [[1, -1]]}, "E_PROTO_003", "input"),
        ({"input": [[1, True]]}, "E_PROTO_003", "input"),
        ({"input": {"text": "x"}}, "E_PROTO_003", "input"),
        ({"input": ["x"] * 2049}, "E_PROTO_003", "2048"),
        ({"input": "x", "encoding_format": "hex"}, "E_PROTO_003", "encoding_format"),
        ({"input": "x", "truncate": 1}, "E_PROTO_003", "truncate"),
        ({"input": [[999_999]]}, "E_PROTO_003", "999999"),
        ({"input": ["y", [5] * 5000]}, "E_LIMIT_003", "input 1: a text is 5000 tokens"),
        ({"input": "x" * 70_000}, "E_LIMIT_001", "70000 bytes"),
    ],
)
def test_what_is_refused(client: RawClient, fields: Any, code: str, word: str) -> None:
    answer = embed(client, id="wrong", **fields)
    assert (answer["event"], answer["id"], answer["code"]) == ("error", "wrong", code)
    assert word in answer["message"]
    assert "embeddings" in embed(client, input="x")


def test_too_large_an_answer_is_refused_before_it_is_computed(
    client: RawClient, model: llama.Model
) -> None:
    n = 1 + (1 << 20) // (12 * model.n_embd)
    if n > 2048:
        pytest.skip("the vectors of this model are small")
    answer = embed(client, input=["x"] * n)
    assert answer["code"] == "E_LIMIT_001" and "base64" in answer["message"]


def rated(client: RawClient, id: str, prompt: str, **fields: Any) -> list[dict[str, Any]]:
    client.ask(id, prompt, temperature=0, **fields)
    client.finish(id)
    events, client.other = client.other, []
    assert all(event["id"] == id for event in events)
    return events


@pytest.mark.parametrize("stream", [True, False])
def test_rated_prompts(client: RawClient, model: llama.Model, stream: bool) -> None:
    tokens = model.tokenize(TEXT)
    events = rated(
        client, "p", TEXT, prompt_logprobs=3, max_tokens=2, stream=stream, echo=True, logprobs=1
    )
    if stream:
        assert events.pop()["event"] == "echo"
    assert {event["event"] for event in events} == {"prompt_logprobs"}
    entries = [entry for event in events for entry in event["logprobs"]]
    assert [entry["token_id"] for entry in entries] == tokens
    assert "".join(entry["text"] for entry in entries) == TEXT
    expected = logprobs(model, tokens)
    assert entries[0]["logprob"] is None and entries[0]["top_logprobs"] == []
    rated_so = [entry["logprob"] for entry in entries[1:]]
    assert_near(rated_so, [expected[at - 1][tokens[at]] for at in range(1, len(tokens))])
    for entry in entries[1:]:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True)
    eos = client.results["p"].eos
    assert eos is not None and eos["usage"]["completion_tokens"] <= 2
    if not stream:
        assert eos["text"].startswith(TEXT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_no_answer_is_wanted(
    client: RawClient, stream: bool, prompt_logprobs: int | None
) -> None:
    events = rated(
        client, "p", "x = 1", max_tokens=0, stream=stream, prompt_logprobs=prompt_logprobs
    )
    result = client.results["p"]
    assert result.tokens == [] and result.eos is not None
    assert (result.eos["reason"], result.eos["usage"]["completion_tokens"]) == ("length", 0)
    assert bool(events) == (prompt_logprobs is not None)


def test_a_token_that_ends_the_text_is_told(client: RawClient, model: llama.Model) -> None:
    eog = next(i for i, is_eog in enumerate(model.eog_mask()) if is_eog)
    bias = {"logit_bias": {str(eog): 1000}}
    rated(client, "p", "x", max_tokens=3, stream=False, prompt_logprobs=1, logprobs=1, **bias)
    eos = client.results["p"].eos
    assert eos is not None and (eos["reason"], eos["text"]) == ("stop", "")
    (entry,) = eos["logprobs"]
    assert (entry["token_id"], entry["text"]) == (eog, "") and entry["logprob"] <= 0.0


def test_wrong_fields_of_requests(client: RawClient) -> None:
    client.send(id="a", prompt="x", prompt_logprobs=21)
    assert "prompt_logprobs" in client.answer("error")["message"]
    client.send(id="b", messages=[{"role": "user", "content": "x"}], prompt_logprobs=0)
    assert "messages" in client.answer("error")["message"]


def test_cancelled(daemon: DaemonProcess, client: RawClient) -> None:
    client.send(type="embed", id="e", input=[TEXT * 6] * 40)
    client.send(type="cancel", id="e")
    assert client.answer("cancelled")["found"] is True
    client.send(type="ping", id="p")
    assert client.answer("pong")["id"] == "p"
    assert not [event for event in client.other if event["event"] == "embeddings"]
    client.ask("r", TEXT * 6, prompt_logprobs=1, max_tokens=1)
    client.send(type="cancel", id="r")
    (result,) = client.finish("r")
    assert result.eos is not None
    with daemon.client() as gone:  # leaves at once
        gone.send(type="embed", input=[TEXT * 6] * 40)
        gone.ask("s", TEXT * 6, prompt_logprobs=1, max_tokens=1)
    assert "embeddings" in embed(client, input="x")


def test_an_engine_that_dies_is_replaced_and_nothing_is_told_twice(
    daemon: DaemonProcess, client: RawClient, model: llama.Model
) -> None:
    long = TEXT * 8
    client.ask("r", long, prompt_logprobs=0, max_tokens=1, temperature=0)
    while not [event for event in client.other if event["event"] == "prompt_logprobs"]:
        client.receive()
    os.kill(daemon.engine_pid(), signal.SIGKILL)
    client.send(type="embed", id="e", input=["x", TEXT])
    (result,) = client.finish("r")
    assert result.eos is not None and result.eos["reason"] in ("length", "stop")
    entries = [e for event in client.other for e in event.get("logprobs", ())]
    assert [entry["token_id"] for entry in entries] == model.tokenize(long)
    assert len(client.answer("embeddings")["embeddings"]) == 2


def test_by_the_python_client(daemon: DaemonProcess, model: llama.Model) -> None:
    with Client(daemon.path) as client:
        (vector,) = client.embed(TEXT)
        assert cosine(vector, pooled(model, model.tokenize(TEXT), "last")) > 0.9999


# --- an encoder-only model -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("encoder")
    path = write_model(folder / "bert.gguf", "bert-micro")
    with real(folder, model=path, n_ctx=0) as daemon:
        yield daemon


def test_an_encoder_embeds_and_generates_nothing(encoder: DaemonProcess) -> None:
    info = encoder.info()["model"]
    assert (info["generates"], info["pooling"], info["n_embd"]) == (False, "mean", 128)
    with llama.Model.open(llama.load(), info["path"], n_gpu_layers=0) as model:
        expected = pooled(model, model.tokenize("Hello world"), "mean")
    with encoder.client() as client:
        (vector,) = embed(client, input="Hello world")["embeddings"]
        assert cosine(vector, expected) > 0.9999
        for asked in ({"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}):
            client.send(id="g", **asked)
            error = client.answer("error")
            assert error["code"] == "E_PROTO_003" and "embeddings only" in error["message"]
        long = embed(client, input="a b " * 400)
        assert long["code"] == "E_LIMIT_003"
        assert embed(client, input="a b " * 400, truncate=True)["usage"]["prompt_tokens"] == 512


def test_a_dead_encoder_is_replaced(encoder: DaemonProcess) -> None:
    before = encoder.engine_pid()
    os.kill(before, signal.SIGKILL)
    with encoder.client() as client:
        assert len(embed(client, input=["x", "y"])["embeddings"]) == 2
    assert eventually(lambda: encoder.engine_pid() != before)


def test_from_one_kind_of_model_to_the_other(encoder: DaemonProcess, model: llama.Model) -> None:
    first = encoder.info()["model"]["path"]
    with encoder.client() as client:
        for path, generates in ((str(model.path), True), (first, False)):
            client.send(type="load", model=path)
            assert client.answer("loaded")["event"] == "loaded"
            assert encoder.info()["model"]["generates"] is generates
            assert "embeddings" in embed(client, input="x")


def test_a_folder_of_what_no_daemon_serves(tmp_path: Path) -> None:
    path = write_model(tmp_path / "t5.gguf", "t5-micro")
    daemon = real(tmp_path, model=path, wait=False)
    daemon.expected = 1
    assert daemon.wait() == 1
    assert "encoder-decoder model (t5)" in daemon.log
