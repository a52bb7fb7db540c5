"""libllama by itself on a whole text: what embeddings and log-probabilities are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from umaserve import llama

POOLING = {"mean": 1, "cls": 2, "last": 3}  # LLAMA_POOLING_TYPE_*


def computed(model: llama.Model, tokens: list[int], **params: Any) -> llama.Context:
    """A fresh context that has decoded all of ``tokens`` at once, each with a row."""
    n = len(tokens)
    context = llama.Context.open(
        model, n_ctx=max(n, 256), n_batch=n, n_ubatch=n, n_threads=1, **params
    )
    lib = model.library.lib
    batch = lib.llama_batch_init(n, 0, 1)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    batch.n_tokens = n
    assert lib.llama_decode(context.pointer, batch) == 0
    lib.llama_batch_free(batch)
    return context


def pooled(model: llama.Model, tokens: list[int], way: str) -> np.ndarray:
    """The vector as libllama pools it, float64[n_embd] of length 1."""
    lib, ffi = model.library.lib, model.library.ffi
    with computed(model, tokens, embeddings=True, pooling_type=POOLING[way]) as context:
        row = lib.llama_get_embeddings_seq(context.pointer, 0)
        assert row != ffi.NULL
        vector = np.frombuffer(ffi.buffer(row, 4 * model.n_embd), np.float32).astype(np.float64)
    return vector / np.linalg.norm(vector)


def logprobs(model: llama.Model, tokens: list[int]) -> np.ndarray:
    """Of all tokens after each of ``tokens``: natural logarithms, float64[n, n_vocab]."""
    lib, ffi = model.library.lib, model.library.ffi
    with computed(model, tokens) as context:
        size = 4 * len(tokens) * model.n_vocab
        rows = np.frombuffer(ffi.buffer(lib.llama_get_logits(context.pointer), size), np.float32)
        logits = rows.reshape(len(tokens), model.n_vocab).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def cosine(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def assert_near(values: Sequence[float | None], expected: Sequence[float]) -> None:
    """Log-probabilities of tokens, but for what kernels of other batch shapes make of them.

    These differ by up to one logit on the bundled model, for tokens that are hardly
    possible by some percent, and for likely ones hardly at all in the mean.
    """
    assert len(values) == len(expected)
    found = np.array(values, np.float64)
    wrong = np.abs(found - expected) > 2.0 + 0.03 * np.abs(expected)
    assert not wrong.any(), (np.flatnonzero(wrong), found[wrong], np.asarray(expected)[wrong])
    likely = np.asarray(expected) > -8.0
    assert abs(float(np.sum((found - expected)[likely]))) <= 1.0 + 0.15 * likely.sum()
