"""GGUF models of every family in some ten to three hundred kilobytes, to be broken on purpose.

The shapes are the micro ones of ``gguf_shapes`` made smaller still, with the beginning of a real
vocabulary: a load takes milliseconds, so that a hundred thousand of them can be tried.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import numpy as np

from tests.support.small_models import container, gguf_shapes

Shape, Ssm, Tensor = gguf_shapes.Shape, gguf_shapes.Ssm, gguf_shapes.Tensor

_Q8_0, _F32, _BLOCK = 8, 0, 32
_CONTROL = 3  # LLAMA_TOKEN_TYPE_CONTROL
_END = b"<|end|>"
_VOCABULARY = "tokenizer.ggml.tokens"

_FEW = {"n_expert": 4, "n_expert_used": 2}
# family: the shape that is made smaller, and what else differs
_FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama3.2-1b", {}),
    "llama-unigram": ("llama3.2-1b", {"vocab": "nomic-bert-moe", "rope_scaling": None}),
    "qwen2": ("micro-151k", {}),
    "qwen3moe": ("moe-micro", {"n_expert": 4, "n_expert_used": 2, "n_ff_expert": 32}),
    "gemma3": ("gemma3-micro", {"window": 8}),
    "gpt2": ("gpt2-micro", {}),
    "mamba": ("mamba-micro", {"ssm": Ssm(4, 128, 8, 4)}),
    "mamba2": ("mamba2-micro", {"ssm": Ssm(4, 128, 8, 2)}),
    "jamba": ("jamba-micro", {"ssm": Ssm(4, 128, 8, 4)}),
    "lfm2": ("lfm2-micro", {}),
    "gpt-oss": ("gpt-oss-micro", {"window": 8, "n_ff_expert": 32, **_FEW}),
    "qwen3next": ("qwen3next-micro", {"ssm": Ssm(4, 64, 32, 2, 1), **_FEW}),
    "qwen35moe": ("qwen35moe-micro", {"ssm": Ssm(4, 64, 32, 2, 1), **_FEW}),
    "granitehybrid": ("granitehybrid-micro", {"ssm": Ssm(4, 128, 8, 2), **_FEW}),
    "bert": ("bert-micro", {"n_vocab": 1100}),
    "t5": ("t5-micro", {}),
}
FAMILIES = tuple(_FAMILIES)


def tiny_shape(family: str) -> Shape:
    """The shape of a family: two layers, 64 values wide, some hundred tokens."""
    name, changes = _FAMILIES[family]
    shape = gguf_shapes.SHAPES[name]
    small: dict[str, object] = {"n_layer": 2, "n_embd": 64, "n_ctx": 128, "n_vocab": 320}
    if shape.n_head:
        n_kv = 2 if shape.n_head_kv == shape.n_head else 1
        small |= {"n_head": 2, "n_head_kv": n_kv, "head_dim": 32, "n_ff": 64}
    return dataclasses.replace(shape, name=f"tiny-{family}", **(small | changes))  # type: ignore[arg-type]


def tiny_model(family: str, vocab_dir: Path) -> bytes:
    """A whole GGUF of *family*; *vocab_dir* holds llama.cpp's vocabularies."""
    shape = tiny_shape(family)
    keys = {key: container.Value.of(value) for key, value in gguf_shapes.metadata(shape).items()}
    keys |= _cut_vocabulary(vocab_dir / f"ggml-vocab-{shape.vocab}.gguf", shape.n_vocab)
    keys["tokenizer.chat_template"] = container.Value.of(shape.template)
    random = np.random.Generator(np.random.PCG64(1))
    tensors = {
        tensor.name: (tensor.dims, _F32 if tensor.f32 else _Q8_0, _content(tensor, random))
        for tensor in gguf_shapes.tensors(shape)
    }
    return container.whole(keys, tensors)


def _content(tensor: Tensor, random: np.random.Generator) -> bytes:
    if tensor.values is not None:
        return tensor.values.astype("<f4").tobytes()
    if tensor.std == 0.0:
        return np.ones(tensor.n_elements, "<f4").tobytes()
    if tensor.f32:
        return (random.standard_normal(tensor.n_elements) * tensor.std).astype("<f4").tobytes()
    blocks = np.empty((tensor.n_elements // _BLOCK, 34), np.uint8)
    step = np.array([tensor.std / 40], "<f2")
    blocks[:, :2] = np.frombuffer(step.tobytes(), np.uint8)
    blocks[:, 2:] = random.integers(0, 256, (len(blocks), _BLOCK), np.uint8)
    return blocks.tobytes()


def _cut_vocabulary(path: Path, n_vocab: int) -> dict[str, container.Value]:
    """The tokenizer's keys of *path* for its first tokens, the last of which ends a text."""
    found = container.read_metadata(path)
    keys = {key: value for key, value in found.items() if key.startswith("tokenizer.ggml.")}
    tokens = [*keys[_VOCABULARY].strings()[: n_vocab - 1], _END]
    for key, value in list(keys.items()):
        name = key.removeprefix("tokenizer.ggml.")
        if name == "tokens":
            keys[key] = _strings(tokens)
        elif name in ("token_type", "scores"):
            item = struct.unpack_from("<I", value.data)[0]
            last = struct.pack("<i", _CONTROL) if name == "token_type" else struct.pack("<f", 0.0)
            head = struct.pack("<IQ", item, n_vocab)
            items = value.data[12:][: 4 * n_vocab - 4] + last
            keys[key] = container.Value(value.kind, head + items)
        elif name == "merges":
            known = set(tokens)
            keys[key] = _strings([m for m in value.strings()[: 4 * n_vocab] if _makes(m, known)])
        elif name.endswith("_token_id") and int(value.scalar()) >= n_vocab:
            keys[key] = container.Value.of(n_vocab - 1)
    return keys


def _makes(merge: bytes, known: set[bytes]) -> bool:
    left, _, right = merge.partition(b" ")
    return {left, right, left + right} <= known


def _strings(texts: list[bytes]) -> container.Value:
    packed = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    head = struct.pack("<IQ", container.STRING, len(texts))
    return container.Value(container.ARRAY, head + packed)
