"""Models that encode beside one that chats: which of them answers, and whose tokens are meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient, eventually
from tests.support.small_models import write_model
from tests.support.whole_texts import cosine, pooled
from umaserve import llama
from umaserve.client import Client

QUERY = "What is a good book?"
DOCUMENTS = ["A long book", "Paris", "A machine is a system", "word " * 300]
ROUTES = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    shapes = {"search": "bert-micro", "judge": "bert-rank-micro"}
    return {name: write_model(folder / f"{name}.gguf", shape) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, paths: dict[str, str]
) -> Iterator[DaemonProcess]:
    models = {name: {"path": path} for name, path in paths.items()}
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, models=models, http="127.0.0.1:0", n_ctx=1024) as daemon:
        yield daemon
        daemon.idle()


@pytest.fixture(scope="module")
def search(paths: dict[str, str]) -> Iterator[llama.Model]:
    with llama.Model.open(llama.load(), paths["search"], n_gpu_layers=0) as model:
        yield model


def told(client: RawClient, event: str, **fields: Any) -> dict[str, Any]:
    client.send(**fields)
    return client.answer(event)


def ranking(client: RawClient, **fields: Any) -> dict[str, Any]:
    return told(client, "ranking", **{"type": "rerank", "query": QUERY, **fields})


# --- over the socket -----------------------------------------------------------------------------


def test_roles_are_found_in_the_files(daemon: DaemonProcess) -> None:
    def roles() -> dict[str, str]:
        return {each["id"]: each["role"] for each in daemon.info()["models"][1:]}

    eventually(lambda: roles() == {"search": "embed", "judge": "rerank"}, "both are known")


def test_a_ranking_names_the_documents_by_their_scores(client: RawClient) -> None:
    answer = ranking(client, id="r", documents=DOCUMENTS)
    assert (answer["id"], answer["model"]) == ("r", "judge")
    scores = [each["relevance_score"] for each in answer["results"]]
    assert sorted(each["index"] for each in answer["results"]) == [0, 1, 2, 3]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 300
    first = ranking(client, documents=DOCUMENTS, top_n=2)
    assert first["results"] == answer["results"][:2]
    by_name = ranking(client, documents=DOCUMENTS, model="judge")
    assert by_name["results"] == answer["results"]


def test_more_documents_than_a_group_has(client: RawClient) -> None:
    documents = [f"document {number} " + "word " * (number % 40) for number in range(200)]
    answer = ranking(client, documents=documents)
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert len(scores) == 200
    for number in (0, 63, 64, 199):
        (alone,) = ranking(client, documents=[documents[number]])["results"]
        assert scores[number] == pytest.approx(alone["relevance_score"], abs=0.02)


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, "E_PROTO_003", '"documents" is missing'),
        ({"documents": []}, "E_PROTO_003", "documents"),
        ({"documents": "x"}, "E_PROTO_003", "documents"),
        ({"documents": [1]}, "E_PROTO_003", "documents"),
        ({"documents": ["x"], "query": None}, "E_PROTO_003", '"query" is missing'),
        ({"documents": ["x"], "top_n": 0}, "E_PROTO_003", "top_n"),
        ({"documents": ["x", "word " * 600]}, "E_LIMIT_003", "input 1: a text is 6"),
        ({"documents": ["x" * 70_000]}, "E_LIMIT_001", "bytes"),
    ],
)
def test_what_is_refused(client: RawClient, fields: Any, code: str, word: str) -> None:
    answer = ranking(client, id="wrong", **fields)
    assert (answer["event"], answer["id"], answer["code"]) == ("error", "wrong", code)
    assert word in answer["message"]


def test_a_document_loses_its_end_where_that_is_asked(client: RawClient) -> None:
    answer = ranking(client, documents=["word " * 600], truncate=True)
    assert answer["usage"]["prompt_tokens"] == 512


def test_who_cannot_says_who_can(client: RawClient) -> None:
    chat = client.generate("x", model="judge").error
    assert chat is not None and chat["code"] == "E_PROTO_003"
    assert "judge ranks documents only and generates no text; ask for " in chat["message"]
    assert "which generates text" in chat["message"]
    wrong = ranking(client, documents=["x"], model="search")["message"]
    assert "embeddings only" in wrong and "ask for judge, which ranks documents" in wrong
    wrong = told(client, "embeddings", type="embed", input="x", model="judge")["message"]
    assert "makes no embeddings; ask for " in wrong


def test_without_a_model_that_can_one_is_to_be_loaded(tmp_path: Path) -> None:
    with real(tmp_path) as daemon, daemon.client() as client:
        wrong = ranking(client, documents=["x"])
        assert wrong["code"] == "E_PROTO_003"
        assert "ranks no documents; load a model that ranks documents" in wrong["message"]


def test_a_ranking_is_cancelled(client: RawClient) -> None:
    client.send(type="rerank", id="c", query=QUERY, documents=["word " * 300] * 30)
    client.send(type="cancel", id="c")
    assert client.answer("cancelled")["found"] is True
    assert ranking(client, documents=["x"])["results"][0]["index"] == 0


def test_many_clients_share_batches_and_get_their_own(daemon: DaemonProcess) -> None:
    """Their texts differ, and so do the vectors."""
    texts = [[f"client {n} text {i} " + "w " * (n + i) for i in range(9)] for n in range(12)]
    with ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in texts]
        for client, own in zip(clients, texts, strict=True):
            client.send(type="embed", input=own)
        found = [client.answer("embeddings")["embeddings"] for client in clients]
        for client, own, vectors in zip(clients, texts, found, strict=True):
            again = told(client, "embeddings", type="embed", input=own[-1])["embeddings"][0]
            assert cosine(vectors[-1], again) > 0.9999
    everything = np.array([vector for vectors in found for vector in vectors])
    assert len(np.unique(everything.round(4), axis=0)) == 12 * 9


def test_by_the_python_client(daemon: DaemonProcess) -> None:
    with Client(daemon.path) as client:
        found = client.rerank(QUERY, DOCUMENTS, top_n=3)
        assert [len(found), found[0]["index"] in range(4)] == [3, True]


# --- over HTTP -----------------------------------------------------------------------------------


def test_rankings_in_the_shapes_of_others(daemon: DaemonProcess, client: RawClient) -> None:
    expected = ranking(client, documents=DOCUMENTS)
    for route in ROUTES:
        answer = post(port_of(daemon), route, {"query": QUERY, "documents": DOCUMENTS}).json
        assert answer["results"] == expected["results"]
        assert (answer["object"], answer["model"]) == ("list", "judge")
        assert answer["usage"] == expected["usage"]
    body = {"model": "rerank-x", "query": QUERY, "documents": [{"text": "x"}, "yy"], "top_n": 99}
    answer = post(port_of(daemon), "/v1/rerank", body | {"return_documents": True}).json
    assert answer["model"] == "rerank-x" and len(answer["results"]) == 2
    texts = {each["index"]: each["document"]["text"] for each in answer["results"]}
    assert texts == {0: "x", 1: "yy"}
    tei = {"query": QUERY, "texts": DOCUMENTS, "top_n": 2}
    answer = post(port_of(daemon), "/rerank", tei).json
    scores = [(each["index"], each["score"]) for each in answer]
    best = expected["results"][:2]
    assert scores == [(each["index"], each["relevance_score"]) for each in best]
    answer = post(port_of(daemon), "/rerank", tei | {"return_text": True}).json
    assert [each["text"] for each in answer] == [DOCUMENTS[each["index"]] for each in best]


@pytest.mark.parametrize(
    "body",
    [
        {"documents": ["x"]},
        {"query": 5, "documents": ["x"]},
        {"query": "x"},
        {"query": "x", "documents": []},
        {"query": "x", "documents": 123},
        {"query": "x", "documents": [1, 2]},
        {"query": "x", "documents": ["x"], "top_n": 0},
        {"query": "x", "documents": ["word " * 600]},
        {"query": "x", "documents": ["x"], "model": "search"},
    ],
)
def test_what_is_refused_over_http(daemon: DaemonProcess, body: dict[str, Any]) -> None:
    answer = post(port_of(daemon), "/rerank", body)
    assert answer.status == 400 and answer.json["error"]["message"]


def test_more_documents_than_a_frame_takes(daemon: DaemonProcess) -> None:
    """A hundred of 1.5 KB, as a program sends that searches texts."""
    documents = [f"Document {n}. " + "A long text about books. " * 60 for n in range(100)]
    body = {"query": QUERY, "documents": documents, "truncate": True, "top_n": 7}
    found = post(port_of(daemon), "/v1/rerank", body)
    assert found.status == 200, found.body
    results = found.json["results"]
    scores = [each["relevance_score"] for each in results]
    assert len(results) == 7 and scores == sorted(scores, reverse=True)
    alone = post(port_of(daemon), "/v1/rerank", {
        **body, "documents": [documents[each["index"]] for each in results],
    })  # fmt: skip
    again = sorted((each["relevance_score"] for each in alone.json["results"]), reverse=True)
    assert again == pytest.approx(scores, abs=1e-3)


def test_what_is_too_long_is_refused_or_cut_as_asked(daemon: DaemonProcess) -> None:
    port, body = port_of(daemon), {"model": "search", "input": "word " * 600}
    for route in ("/v1/embeddings", "/embedding"):
        refused = post(port, route, body)
        assert refused.status == 400 and "602 tokens" in refused.json["error"]["message"]
        assert post(port, route, body | {"truncate": True}).status == 200
    shown = post(port, "/api/show", {"model": "judge"}).json
    assert shown["capabilities"] == ["reranking"]


# --- whose tokens --------------------------------------------------------------------------------


def test_embeddings_without_a_name_have_the_tokens_of_the_model_that_embeds(
    daemon: DaemonProcess, search: llama.Model
) -> None:
    words = search.tokenize("machine", add_special=False)
    cases: list[tuple[Any, list[int]]] = [
        ("", search.tokenize("")),
        (["x", ""], search.tokenize("")),
        ([101, "machine", 102], [101, *words, 102]),
        ("a machine", search.tokenize("a machine")),
    ]
    for given, tokens in cases:
        for route, field in (("/v1/embeddings", "input"), ("/embedding", "content")):
            answer = post(port_of(daemon), route, {"model": "text-embedding-3", field: given})
            assert answer.status == 200, answer.body
            last = (answer.json["data"] if route.startswith("/v1") else answer.json)[-1]
            vector = np.ravel(last["embedding"])
            assert cosine(vector, pooled(search, tokens, "mean")) > 0.9999, given


def test_texts_are_tokenised_by_the_model_that_is_named(
    daemon: DaemonProcess, search: llama.Model
) -> None:
    port, text = port_of(daemon), "a machine is a system"
    tokens = search.tokenize(text, add_special=False)
    answer = post(port, "/tokenize", {"model": "search", "content": text}).json
    assert answer["tokens"] == tokens
    spelled = post(port, "/detokenize", {"model": "search", "tokens": tokens}).json["content"]
    assert spelled.split() == text.split()
    assert post(port, "/tokenize", {"content": text}).json["tokens"] != tokens
    said = {"model": "search", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    templates = [
        post(port, "/apply-template", said | {"model": model}).json["prompt"]
        for model in ("search", "model")
    ]
    counts = [
        post(port, "/v1/messages/count_tokens", said | {"model": model}).json["input_tokens"]
        for model in ("search", "model")
    ]
    assert counts[0] == len(search.tokenize(templates[0]))
    assert counts[0] != counts[1], json.dumps(templates)
