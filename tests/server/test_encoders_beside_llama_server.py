"""Made models that encode, beside llama-server with the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import LlamaServer
from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.small_models import write_model
from tests.support.whole_texts import cosine
from umaserve.llama import builds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any((build.bin_dir / "llama-server").exists() for build in builds.installed()),
        reason="llama-server is not built: python build_llama.py --with-peers",
    ),
]
TEXTS = ["Machine learning is", "", "A machine. " * 30, "Paris, capitale de la France", "x"]


def answers(path: str, folder: Path, route: str, body: Any, flag: str) -> list[Any]:
    """What the daemon and llama-server answer, in this order."""
    with real(folder, model=path, n_ctx=0, http="127.0.0.1:0") as daemon:
        ours = post(port_of(daemon), route, body)
    extra = (flag, "-ub", "512", "-b", "512")
    with LlamaServer(path, n_ctx=2048, parallel=4, threads=1, extra=extra) as server:
        theirs = post(server.port, route, body)
    assert (ours.status, theirs.status) == (200, 200), (ours.body, theirs.body)
    return [ours.json, theirs.json]


def test_embeddings(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert.gguf", "bert-micro")
    found = answers(path, tmp_path, "/v1/embeddings", {"input": TEXTS}, "--embeddings")
    ours, theirs = (np.array([e["embedding"] for e in each["data"]]) for each in found)
    assert min(map(cosine, ours, theirs)) > 0.9999
    assert found[0]["usage"] == found[1]["usage"]


@pytest.mark.parametrize("shape", ["bert-rank-micro", "qwen3-rank-micro"])
def test_rankings(tmp_path: Path, shape: str) -> None:
    path = write_model(tmp_path / "rank.gguf", shape)
    body = {"query": "What is learning?", "documents": TEXTS}
    found = answers(path, tmp_path, "/v1/rerank", body, "--reranking")
    ours, theirs = (
        {each["index"]: each["relevance_score"] for each in one["results"]} for one in found
    )
    for index, score in theirs.items():
        assert ours[index] == pytest.approx(score, abs=0.02), (ours, theirs)
    assert found[0]["usage"] == found[1]["usage"]
