"""An encoder-only model as the daemon's: it embeds, and generates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import build_llama
from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import without_key, write_model
from tests.support.whole_texts import cosine, pooled
from umaserve import llama
from umaserve.wire import messages as m

TEXTS = ("Hello world", "A longer text. " * 30, "x")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("bert") / "bert.gguf", "bert-micro")


@pytest.fixture(scope="module")
def encoder(path: str) -> Iterator[llama.Model]:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        yield model


@pytest.fixture(scope="module")
def engine(path: str) -> Iterator[DrivenEngine]:
    with DrivenEngine(model=path, n_ctx=0, n_positions=512) as engine:
        yield engine


def test_ready(engine: DrivenEngine) -> None:
    ready = engine.ready
    assert (ready.generates, ready.pooling, ready.n_embd) == (False, "mean", 128)
    assert (ready.n_positions, ready.kv_bytes, ready.architecture) == (512, 0, "bert")


def test_vectors(engine: DrivenEngine, encoder: llama.Model) -> None:
    for ref, text in enumerate(TEXTS):
        engine.send(m.Embed(ref, text))
    for ref, text in enumerate(TEXTS):
        answer, tokens = engine.expect(m.Embedded), encoder.tokenize(text)
        assert (answer.ref, answer.n_tokens, answer.error) == (ref, len(tokens), "")
        vector = np.frombuffer(answer.vector, np.float32)
        assert cosine(vector, pooled(encoder, tokens, "mean")) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


def test_what_is_too_long(engine: DrivenEngine) -> None:
    engine.send(m.AskCache(9))
    assert engine.expect(m.CacheReport).why_off
    engine.send(m.Embed(1, tokens=[5] * 513))
    assert engine.expect(m.Embedded).code == "E_LIMIT_003"
    engine.send(m.Embed(2, tokens=[5] * 513, truncate=True))
    assert engine.expect(m.Embedded).n_tokens == 512


def test_other_messages(engine: DrivenEngine, encoder: llama.Model) -> None:
    engine.send(m.Tokenize(7, "Hello"))
    assert engine.expect(m.Tokens).tokens == encoder.tokenize("Hello", add_special=False)
    serial = engine.submit("Hello")
    refused = engine.expect(m.Rejected)
    assert refused.serial == serial and "embeddings only" in refused.message
    engine.send(m.Embed(1, TEXTS[1]))
    engine.send(m.Embed(2, TEXTS[1]))
    engine.send(m.Forget(2))
    engine.send(m.Embed(3, "x"))
    answers = []
    while not answers or answers[-1].ref != 3:
        answers.append(engine.expect(m.Embedded))
    assert [a.ref for a in answers if not a.error] == [1, 3]
    assert {a.ref for a in answers if a.error} <= {2}  # or it has no answer at all


def test_without_the_header_s_word(tmp_path: Path) -> None:
    """libllama takes the architecture's word for it where that has one."""
    path = tmp_path / "bert.gguf"
    write_model(path, "bert-micro")
    without_key(path, "bert.attention.causal")
    without_key(path, "bert.pooling_type")
    with DrivenEngine(model=str(path), n_ctx=256) as engine:
        assert (engine.ready.generates, engine.ready.pooling) == (False, "mean")
        engine.send(m.Embed(1, "Hello"))
        answer = engine.expect(m.Embedded)
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        expected = pooled(model, model.tokenize("Hello"), "mean")
    assert cosine(np.frombuffer(answer.vector, np.float32), expected) > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "arch"), [("t5-micro", "t5encoder"), ("gemma3-micro", "gemma-embedding")]
)
def test_other_encoders(tmp_path: Path, shape: str, arch: str) -> None:
    path = write_model(tmp_path / "x.gguf", shape, arch=arch)
    with DrivenEngine(model=path, n_ctx=256) as engine:
        assert not engine.ready.generates
        engine.send(m.Embed(1, "Hello world"))
        answer = engine.expect(m.Embedded)
        assert answer.error == "" and np.isfinite(np.frombuffer(answer.vector, np.float32)).all()


def test_a_model_that_ranks(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    write_model(path, "bert-micro")
    data = path.read_bytes()
    at = data.index(b"bert.pooling_type") + len(b"bert.pooling_type") + 4  # and its type
    path.write_bytes(data[:at] + (4).to_bytes(4, "little") + data[at + 4 :])
    engine = DrivenEngine(model=str(path), expect_failure=True, n_ctx=256)
    assert engine.close() == 3
    assert "it ranks texts (bert, pooling rank)" in engine.failure
