"""An encoder-only model as the daemon's: it embeds, and generates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import build_llama
from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import without_key, write_model
from tests.support.whole_texts import computed, cosine, pooled
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.llama.ranking import RankPrompt
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


def vectors_of(answer: m.Embedded, width: int = 128) -> np.ndarray:
    assert not answer.error, answer
    return np.frombuffer(answer.vectors, np.float32).reshape(-1, width)


def test_vectors(engine: DrivenEngine, encoder: llama.Model) -> None:
    for ref, text in enumerate(TEXTS):
        engine.send(m.Embed(ref, [text]))
    for ref, text in enumerate(TEXTS):
        answer, tokens = engine.expect(m.Embedded), encoder.tokenize(text)
        assert (answer.ref, answer.n_tokens) == (ref, len(tokens))
        (vector,) = vectors_of(answer)
        assert cosine(vector, pooled(encoder, tokens, "mean")) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


def test_many_texts_share_batches(engine: DrivenEngine, encoder: llama.Model) -> None:
    texts = [f"text {number} " + "word " * (number % 7) for number in range(100)]
    tokens = [encoder.tokenize(text) for text in texts]
    expected = np.array([pooled(encoder, each, "mean") for each in tokens])
    header = engine.table.header
    batches, counted = header.ticks, header.prefill_tokens
    mixed = [*texts[:60], *tokens[60:]]
    engine.send(m.Embed(1, mixed))  # more than one batch takes
    engine.send(m.Embed(2, texts[:30]))
    found = vectors_of(engine.expect(m.Embedded))
    again = vectors_of(engine.expect(m.Embedded))
    assert min(map(cosine, found, expected)) > 0.9999
    assert min(map(cosine, again, expected)) > 0.9999
    n_tokens = sum(map(len, tokens)) + sum(map(len, tokens[:30]))
    assert header.prefill_tokens - counted == n_tokens
    assert header.ticks - batches <= -(-n_tokens // 512) + 2
    assert np.argmin([cosine(expected[0], each) for each in expected]) > 0, "they differ"


def test_one_text_that_cannot_be_ends_its_question_alone(engine: DrivenEngine) -> None:
    engine.send(m.Embed(1, ["good", [5] * 513, "never computed"]))
    engine.send(m.Embed(2, ["good", [99_999]]))
    engine.send(m.Embed(3, ["good"]))
    first, second, third = (engine.expect(m.Embedded) for _ in range(3))
    assert (first.ref, first.at, first.code) == (1, 1, "E_LIMIT_003")
    assert (first.n_tokens, first.most) == (513, 512)
    assert (second.ref, second.at) == (2, 1) and "99999" in second.error
    assert third.ref == 3 and len(vectors_of(third)) == 1


def test_what_is_too_long(engine: DrivenEngine) -> None:
    engine.send(m.AskCache(9))
    assert engine.expect(m.CacheReport).why_off
    engine.send(m.Embed(1, [[5] * 513]))
    assert engine.expect(m.Embedded).code == "E_LIMIT_003"
    engine.send(m.Embed(2, [[5] * 513], truncate=True))
    assert engine.expect(m.Embedded).n_tokens == 512


def test_other_messages(engine: DrivenEngine, encoder: llama.Model) -> None:
    engine.send(m.Tokenize(7, "Hello"))
    assert engine.expect(m.Tokens).tokens == encoder.tokenize("Hello", add_special=False)
    serial = engine.submit("Hello")
    refused = engine.expect(m.Rejected)
    assert refused.serial == serial and "only encodes" in refused.message
    engine.send(m.Embed(1, [TEXTS[1]]))
    engine.send(m.Embed(2, [TEXTS[1]]))
    engine.send(m.Forget(2))
    engine.send(m.Embed(3, ["x"]))
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
        engine.send(m.Embed(1, ["Hello"]))
        answer = engine.expect(m.Embedded)
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        expected = pooled(model, model.tokenize("Hello"), "mean")
    assert cosine(np.frombuffer(answer.vectors, np.float32), expected) > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "arch"), [("t5-micro", "t5encoder"), ("gemma3-micro", "gemma-embedding")]
)
def test_other_encoders(tmp_path: Path, shape: str, arch: str) -> None:
    path = write_model(tmp_path / "x.gguf", shape, arch=arch)
    with DrivenEngine(model=path, n_ctx=256) as engine:
        assert not engine.ready.generates
        engine.send(m.Embed(1, ["Hello world"]))
        answer = engine.expect(m.Embedded)
        assert answer.error == "" and np.isfinite(np.frombuffer(answer.vectors, np.float32)).all()


def scores_of(model: llama.Model, pairs: list[list[int]], **params: Any) -> list[float]:
    """The scores that libllama gives each text by itself."""
    lib, found = model.library.lib, []
    for tokens in pairs:
        with computed(model, tokens, embeddings=True, pooling_type=4, **params) as context:
            found.append(lib.llama_get_embeddings_seq(context.pointer, 0)[0])
    return found


QUERY = "What is the best book?"
DOCUMENTS = ["The best book is long.", "Paris", "", "A machine. " * 60, "the [SEP] of <|im_end|>"]


def test_an_encoder_that_ranks(tmp_path: Path) -> None:
    path = write_model(tmp_path / "rank.gguf", "bert-rank-micro")
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        plain = [model.tokenize(text, parse_special=False)[1:-1] for text in (QUERY, *DOCUMENTS)]
        cls, sep = model.tokenize("")
        # as llama-server has it for this vocabulary: nothing stands behind the document
        pairs = [[cls, *plain[0], sep, *document] for document in plain[1:]]
        expected = scores_of(model, pairs)
    with DrivenEngine(model=path, n_ctx=0, n_positions=512) as engine:
        ready = engine.ready
        assert (ready.role, ready.pooling, ready.generates) == ("rerank", "rank", False)
        engine.send(m.Embed(1, list(DOCUMENTS), QUERY))
        answer = engine.expect(m.Embedded)
        assert answer.n_tokens == sum(map(len, pairs))
        assert vectors_of(answer, 1)[:, 0] == pytest.approx(expected, abs=0.02)
        engine.send(m.Embed(2, ["x", "word " * 600], QUERY))
        answer = engine.expect(m.Embedded)
        assert (answer.code, answer.at) == ("E_LIMIT_003", 1)
        engine.send(m.Embed(3, ["word " * 600], QUERY, truncate=True))
        assert engine.expect(m.Embedded).n_tokens == 512


def test_a_causal_model_that_ranks(tmp_path: Path) -> None:
    """Its last token stands for the text, which may be longer than a ubatch."""
    path = write_model(tmp_path / "rank.gguf", "qwen3-rank-micro")
    documents = [*DOCUMENTS, "A machine. " * 300]
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        prompt = RankPrompt(model)
        pairs = [prompt.tokens(QUERY, each) for each in documents]
        assert "of <|im_end|><|im_end|>" in model_text(model, pairs[4])
        end = model.token_eos
        assert [pair.count(end) for pair in pairs] == [2] * len(pairs), "one is a document's text"
        expected = scores_of(model, pairs)
    with DrivenEngine(model=path, n_ctx=0, n_positions=2048, n_ubatch=256) as engine:
        ready = engine.ready
        assert (ready.role, ready.generates, ready.kv_bytes > 0) == ("rerank", False, True)
        engine.send(m.Embed(1, list(documents), QUERY))
        found = vectors_of(engine.expect(m.Embedded), 1)[:, 0]
        assert found == pytest.approx(expected, abs=0.02)
        assert len({round(float(score), 3) for score in found}) > 3
        engine.send(m.Embed(2, ["word " * 3000], QUERY, truncate=True))
        assert engine.expect(m.Embedded).n_tokens == 2048


def model_text(model: llama.Model, tokens: list[int]) -> str:
    return b"".join(model.token_to_piece_bytes(each, special=True) for each in tokens).decode()


def test_a_model_that_generates_may_encode_alone(tmp_path: Path) -> None:
    with DrivenEngine(n_ctx=512, encodes=True) as engine:
        assert (engine.ready.generates, engine.ready.role) == (False, "embed")
        engine.send(m.Embed(1, ["def area(r):", "x"]))
        found = vectors_of(engine.expect(m.Embedded), engine.ready.n_embd)
    with llama.Model.open(llama.load(), demo_model_path(), n_gpu_layers=0) as model:
        for text, vector in zip(("def area(r):", "x"), found, strict=True):
            assert cosine(vector, pooled(model, model.tokenize(text), "last")) > 0.9999


def test_a_file_that_claims_to_rank_and_cannot(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    write_model(path, "bert-micro")
    data = path.read_bytes()
    at = data.index(b"bert.pooling_type") + len(b"bert.pooling_type") + 4  # and its type
    path.write_bytes(data[:at] + (4).to_bytes(4, "little") + data[at + 4 :])
    engine = DrivenEngine(model=str(path), expect_failure=True, n_ctx=256)
    assert engine.close() == 3
    assert "it claims to rank texts (bert, pooling rank)" in engine.failure
