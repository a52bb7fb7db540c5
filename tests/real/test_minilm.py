"""A real model for embeddings: its vectors beside plain NumPy's and llama-server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import LlamaServer
from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.real_embedder import embedded, embedder_path, weights
from tests.support.server_harness import DaemonProcess
from tests.support.whole_texts import cosine

pytestmark = pytest.mark.real
WORDS = (Path(__file__).parents[2] / "docs" / "HTTP.md").read_text("utf-8").split()
TEXTS = [
    "hello world", "A man is eating food.", "A man is eating a piece of bread.",
    "The girl is carrying a baby.", "Ein Hund läuft über die Straße.", "x",
    *(" ".join(WORDS[at : at + count]) for at, count in ((0, 40), (100, 120), (400, 7))),
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    model = str(embedder_path())
    with real(folder, model=model, http="127.0.0.1:0", n_ctx=0) as daemon:
        yield daemon


def vectors(port: int, texts: list[str]) -> np.ndarray:
    answer = post(port, "/v1/embeddings", {"input": texts})
    assert answer.status == 200, answer.body
    return np.array([each["embedding"] for each in answer.json["data"]])


def tokens_of(daemon: DaemonProcess, text: str) -> list[int]:
    body = {"content": text, "add_special": True}
    tokens: list[int] = post(port_of(daemon), "/tokenize", body).json["tokens"]
    return tokens


def test_vectors_are_those_of_sentence_transformers(daemon: DaemonProcess) -> None:
    assert tokens_of(daemon, "hello world") == [101, 7592, 2088, 102]
    found, own = weights(), vectors(port_of(daemon), TEXTS)
    for text, vector in zip(TEXTS, own, strict=True):
        expected = embedded(found, tokens_of(daemon, text))
        assert np.abs(vector - expected).max() < 1e-2, text
        assert cosine(vector, expected) > 0.999, text
    near, far = cosine(own[1], own[2]), cosine(own[1], own[3])
    assert near > 0.7 > 0.4 > far


def test_vectors_are_those_of_llama_server(daemon: DaemonProcess) -> None:
    extra = ("--embeddings", "-ub", "512", "-b", "512")
    with LlamaServer(
        str(embedder_path()), n_ctx=2048, parallel=4, threads=1, extra=extra
    ) as server:
        theirs = vectors(server.port, TEXTS)
    ours = vectors(port_of(daemon), TEXTS)
    assert min(map(cosine, ours, theirs)) > 0.9999
