"""Embeddings, and completions that rate their prompt, over HTTP."""

from __future__ import annotations

import base64
import json
import math
import socket
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gateway import post, sse
from tests.support.http_client import ask, port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually
from tests.support.small_models import write_model
from tests.support.whole_texts import assert_near, cosine, logprobs, pooled
from umaserve import llama

TEXT = "def area(r):\n    return 3.14 * r * r\n" * 4
OPENAI, COMPLETIONS = "/v1/embeddings", "/v1/completions"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon
        daemon.idle()


@pytest.fixture(scope="module")
def expected(model: llama.Model) -> np.ndarray:
    return pooled(model, model.tokenize(TEXT), "last")


def test_openai(daemon: DaemonProcess, model: llama.Model, expected: np.ndarray) -> None:
    tokens = model.tokenize(TEXT)
    for given in (TEXT, [TEXT], tokens, [tokens]):
        reply = post(port_of(daemon), OPENAI, {"model": "m", "input": given})
        answer = reply.json
        assert (reply.status, answer["object"], answer["model"]) == (200, "list", "m"), answer
        (entry,) = answer["data"]
        assert (entry["object"], entry["index"]) == ("embedding", 0)
        assert cosine(entry["embedding"], expected) > 0.9999
        assert answer["usage"] == {"prompt_tokens": len(tokens), "total_tokens": len(tokens)}
    body = {"input": ["x", TEXT], "encoding_format": "base64", "dimensions": 16}
    entries = post(port_of(daemon), "/embeddings", body).json["data"]
    assert [entry["index"] for entry in entries] == [0, 1]
    numbers = np.frombuffer(base64.b64decode(entries[1]["embedding"]), "<f4")
    assert numbers.size == 16 and abs(np.linalg.norm(numbers) - 1) < 1e-6
    assert cosine(numbers, expected[:16]) > 0.9999


def test_a_batch_that_is_asked_for_in_groups(daemon: DaemonProcess) -> None:
    texts = [f"x = {number}" for number in range(150)]
    entries = post(port_of(daemon), OPENAI, {"input": texts}).json["data"]
    assert [entry["index"] for entry in entries] == list(range(150))
    again = post(port_of(daemon), OPENAI, {"input": texts[149]}).json["data"][0]["embedding"]
    assert cosine(entries[149]["embedding"], again) > 0.9999
    assert cosine(entries[0]["embedding"], again) < 0.9999


def test_ollama(daemon: DaemonProcess, model: llama.Model, expected: np.ndarray) -> None:
    answer = post(port_of(daemon), "/api/embed", {"model": "m", "input": [TEXT, "x"]}).json
    assert answer["model"] == "m" and cosine(answer["embeddings"][0], expected) > 0.9999
    count = len(model.tokenize(TEXT)) + len(model.tokenize("x"))
    assert answer["prompt_eval_count"] == count and answer["total_duration"] > 0
    old = post(port_of(daemon), "/api/embeddings", {"model": "m", "prompt": TEXT}).json
    assert cosine(old["embedding"], expected) > 0.9999
    long = {"model": "m", "input": "a b " * 2000}
    assert post(port_of(daemon), "/api/embed", long).json["prompt_eval_count"] > 1000
    refused = post(port_of(daemon), "/api/embed", {**long, "truncate": False})
    assert refused.status == 400 and "tokens" in refused.json["error"]
    assert post(port_of(daemon), "/api/embed", {"model": "m"}).json["embeddings"] == []
    assert post(port_of(daemon), "/api/embeddings", {"model": "m"}).json["embedding"] == []


def test_llama_server(daemon: DaemonProcess, expected: np.ndarray) -> None:
    for field in ("content", "input"):
        (entry,) = post(port_of(daemon), "/embedding", {field: TEXT}).json
        assert entry["index"] == 0 and cosine(entry["embedding"][0], expected) > 0.9999
    assert post(port_of(daemon), "/embedding", {}).json["error"]["code"] == 400


def test_a_client_that_leaves_is_not_worked_for(daemon: DaemonProcess) -> None:
    body = json.dumps({"input": [TEXT * 10] * 40}).encode()
    head = f"POST {OPENAI} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port_of(daemon)), 60) as sock:
        sock.sendall(head.encode() + body)
        with daemon.client() as client:  # it has reached the daemon
            client.send(type="embed", input="x")
            assert client.answer("embeddings")["event"] == "embeddings"
    # else it would wait behind 40 long texts
    reply = post(port_of(daemon), OPENAI, {"input": "x"})
    assert reply.status == 200


# --- completions that rate their prompt ----------------------------------------------------------


def completed(daemon: DaemonProcess, **body: Any) -> dict[str, Any]:
    reply = post(port_of(daemon), COMPLETIONS, {"temperature": 0, "echo": True, **body})
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_echo_with_logprobs(daemon: DaemonProcess, model: llama.Model, max_tokens: int) -> None:
    tokens = model.tokenize(TEXT)
    told = logprobs(model, tokens)
    for prompt in (TEXT, tokens):
        (choice,) = completed(daemon, prompt=prompt, logprobs=2, max_tokens=max_tokens)["choices"]
        rated = choice["logprobs"]
        assert choice["text"].startswith(TEXT)
        lengths = {len(values) for values in rated.values()}
        assert lengths <= {len(tokens) + max_tokens} or max_tokens > 1
        assert rated["token_logprobs"][0] is rated["top_logprobs"][0] is None
        assert "".join(rated["tokens"][: len(tokens)]) == TEXT
        assert "".join(rated["tokens"]) == choice["text"]
        expected = [told[at - 1][tokens[at]] for at in range(1, len(tokens))]
        assert_near(rated["token_logprobs"][1 : len(tokens)], expected)
        for at, (token, offset) in enumerate(
            zip(rated["tokens"], rated["text_offset"], strict=True)
        ):
            assert choice["text"][offset:].startswith(token)
            if 0 < at < len(tokens):
                assert 1 <= len(rated["top_logprobs"][at]) <= 2


def test_a_stream_tells_the_same(daemon: DaemonProcess) -> None:
    body = {"prompt": [TEXT, "x = "], "logprobs": 1, "max_tokens": 3}
    whole = completed(daemon, **body)["choices"]
    stream = {**body, "temperature": 0, "echo": True, "stream": True}
    texts, told = ["", ""], [[], []]  # type: ignore[var-annotated]
    offsets: list[list[int]] = [[], []]
    for chunk in sse(post(port_of(daemon), COMPLETIONS, stream).body):
        for choice in chunk["choices"] if chunk != "[DONE]" else ():
            texts[choice["index"]] += choice["text"]
            if choice["logprobs"]:
                told[choice["index"]] += choice["logprobs"]["token_logprobs"]
                offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    for number, choice in enumerate(whole):
        assert texts[number] == choice["text"]
        size = len(told[number])
        assert told[number] == choice["logprobs"]["token_logprobs"][:size] and size > 3
        assert offsets[number] == choice["logprobs"]["text_offset"][:size]


def loglikelihood(answer: dict[str, Any], starts: list[int]) -> list[tuple[float, bool]]:
    """As ``lm-eval``'s ``local-completions`` reads an answer (``parse_logprobs``, 0.4.9)."""
    found = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, start in zip(choices, starts, strict=True):
        values = choice["logprobs"]["token_logprobs"][start:-1]
        top = choice["logprobs"]["top_logprobs"][start:-1]
        greedy = all(v == max(t.values()) for v, t in zip(values, top, strict=True))
        found.append((sum(values), greedy))
    return found


def test_log_likelihoods_as_lm_eval_asks_for_them(
    daemon: DaemonProcess, model: llama.Model
) -> None:
    context = model.tokenize("def area(r):\n    return 3.14 *")
    best = int(np.argmax(logprobs(model, context)[-1]))
    prompts = [[*context, *model.tokenize(" r * r", add_special=False)], [*context, best]]
    answer = completed(
        daemon, model="m", prompt=prompts, max_tokens=1, logprobs=1, seed=1234
    )
    starts = [len(context)] * 2
    for prompt, (value, greedy) in zip(prompts, loglikelihood(answer, starts), strict=True):
        rows = logprobs(model, prompt)
        expected = sum(rows[i - 1][prompt[i]] for i in range(len(context), len(prompt)))
        assert value == pytest.approx(expected, abs=0.1) and math.isfinite(value)
        assert greedy or prompt is prompts[0]
    # the answer may end at once: there is an entry for its end
    eog = next(i for i, is_eog in enumerate(model.eog_mask()) if is_eog)
    ended = completed(
        daemon, prompt=prompts, max_tokens=1, logprobs=1, logit_bias={str(eog): 100}
    )
    assert [choice["finish_reason"] for choice in ended["choices"]] == ["stop"] * 2
    assert loglikelihood(ended, starts) == loglikelihood(answer, starts)


# --- an encoder-only model -----------------------------------------------------------------------


def test_an_encoder(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert.gguf", "bert-micro")
    with real(tmp_path, model=path, n_ctx=0, http="127.0.0.1:0") as daemon:
        port = eventually(lambda: port_of(daemon))
        answer = post(port, OPENAI, {"input": ["Hello world", "x"]}).json
        assert [len(entry["embedding"]) for entry in answer["data"]] == [128, 128]
        for route, body in (
            (COMPLETIONS, {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/api/generate", {"prompt": "x"}),
        ):
            reply = post(port, route, {**body, "stream": False})
            assert reply.status == 400 and b"embeddings only" in reply.body
        show = post(port, "/api/show", {"model": "m"}).json
        assert show["capabilities"] == ["embedding"]
        assert ask(daemon, "/v1/models").status == 200
