"""Perplexity of the bundled model by type and layout of its KV cache, for `benchmarks.kv_types`.

The text is of the kind that the model was trained on, small Python modules, drawn with another
seed.  Each token is predicted from all before it, whose keys and values lie in a cache of that
kind.  A model of random weights has no perplexity to speak of, so it is always the bundled one.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from benchmarks.turns import say
from demo_model import snippets
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.config.kinds import KV_TYPES
from umaserve.engine.native.batch import Batch

TOKEN_MAJOR, HEAD_MAJOR = "token-major", "head-major"
CHUNK = 256  # tokens computed at once
SEED = 1  # not that of the training


class Kind(NamedTuple):
    """Of a KV cache, as ``--kv-type`` and ``--kv-pack`` take it; ``type_k`` and ``type_v`` as
    libllama does."""

    kv_type: str
    kv_pack: str
    type_k: str
    type_v: str

    @classmethod
    def of(cls, kv_type: str, kv_pack: str) -> Kind:
        """``kv_type`` without a colon; V that lies head by head is f16 always."""
        k = KV_TYPES[kv_type]
        v = "f16" if kv_pack == HEAD_MAJOR else k
        return cls(f"{kv_type}:f16" if v != k else kv_type, kv_pack, k, v)

    def context(self, model: llama.Model, n_ctx: int, **sizes: int) -> llama.Context:
        """A context of the model with such a cache."""
        return llama.Context.open(
            model, n_ctx=n_ctx, type_k=self.type_k, type_v=self.type_v,
            flash_attn=self.kv_pack == TOKEN_MAJOR, **sizes,
        )  # fmt: skip


def perplexities(
    library: llama.Library, kinds: list[Kind], n_tokens: int, threads: int
) -> list[dict[str, Any]]:
    """For each kind a row: ``perplexity`` over ``n_tokens``, and ``over_first``."""
    rows: list[dict[str, Any]] = []
    with llama.Model.open(library, demo_model_path(), n_gpu_layers=-1) as model:
        tokens = _text(model, n_tokens)
        for kind in kinds:
            say(f"kv types: perplexity with {kind.kv_type}, {kind.kv_pack}")
            found = perplexity(model, kind, tokens, threads)
            first = rows[0]["perplexity"] if rows else found
            rows.append(
                {"kv_type": kind.kv_type, "kv_pack": kind.kv_pack, "perplexity": found,
                 "over_first": found / first}
            )  # fmt: skip
    return rows


def perplexity(model: llama.Model, kind: Kind, tokens: np.ndarray, threads: int) -> float:
    """Of ``tokens`` (int32), all but the first, in one sequence."""
    batch, lost = Batch(model.library.ffi, CHUNK, 1), 0.0
    with kind.context(
        model, len(tokens), n_batch=CHUNK, n_ubatch=CHUNK, n_threads=threads
    ) as context:
        for at in range(0, len(tokens) - 1, CHUNK):
            count = min(CHUNK, len(tokens) - 1 - at)
            logits = _decode(context, batch, tokens[at : at + count], at)
            wanted = tokens[at + 1 : at + 1 + count]
            most = logits.max(axis=1)
            sums = np.log(np.exp(logits - most[:, None]).sum(axis=1, dtype=np.float64)) + most
            lost += float((sums - logits[np.arange(count), wanted]).sum())
    return float(np.exp(lost / (len(tokens) - 1)))


def _decode(context: llama.Context, batch: Batch, tokens: np.ndarray, at: int) -> np.ndarray:
    """The logits of each token: float32[n, n_vocab], libllama's until the next call."""
    arrays, count = batch.arrays, len(tokens)
    arrays.token[:count] = tokens
    arrays.pos[:count] = np.arange(at, at + count)
    arrays.seq[:count] = 0
    arrays.logits[:count] = 1
    arrays.n_tokens[0] = count
    lib, ffi = context.library.lib, context.library.ffi
    status = lib.llama_decode(context.pointer, batch.struct[0])
    if status != 0:
        raise RuntimeError(f"llama_decode: {status}")
    size = count * context.model.n_vocab
    data = ffi.buffer(lib.llama_get_logits(context.pointer), 4 * size)
    return np.frombuffer(data, np.float32).reshape(count, -1)


def _text(model: llama.Model, n_tokens: int) -> np.ndarray:
    """So many tokens, int32."""
    found: list[int] = []
    for text in snippets.modules(random.Random(SEED), n_tokens):
        found += model.tokenize(text + "\n\n", add_special=False)
        if len(found) >= n_tokens:
            break
    return np.array(found[:n_tokens], np.int32)
