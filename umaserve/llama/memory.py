"""How many bytes a model will take, from its GGUF header alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from umaserve.models.gguf import GGML_TYPES, check_gguf
from umaserve.models.header import GGUFError, GGUFInfo

KV_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8,
    "iq4_nl": 20,
}  # fmt: skip
"""ggml type ids of the KV cell types that llama.cpp takes, by ``ggml_type_name``."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes: `weight_bytes` of the tensors, `kv_bytes` of the KV cells, `state_bytes` of what
    recurrent layers keep of one sequence.

    Not counted: libllama's compute buffers, which depend on the backend and the batch.
    """

    weight_bytes: int
    kv_bytes: int
    state_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """With one sequence."""
        return self.weight_bytes + self.kv_bytes + self.state_bytes


def memory_needed(
    path: str | os.PathLike[str], *, n_ctx: int, type_k: str = "f16", type_v: str = "f16"
) -> MemoryNeed:
    """What serving the model at `path` with `n_ctx` KV cells takes.

    An upper bound for models with sliding-window layers, whose cells may be fewer. A model whose
    header lacks the attention's shape (a recurrent one) counts no KV cells. Raises `GGUFError`.
    """
    info = check_gguf(path)
    cells = n_ctx * kv_bytes_per_cell(info, type_k, type_v)
    return MemoryNeed(info.tensor_bytes, cells, state_bytes_per_sequence(info))


def kv_bytes_per_cell(info: GGUFInfo, type_k: str = "f16", type_v: str = "f16") -> int:
    """Bytes that one token occupies in the KV cache over all layers.

    Draft layers (``nextn_predict_layers``) get no cells, and latent attention (MLA) keeps one row
    that serves as K and V (``llama_kv_cache``: ``has_v = !is_mla``).
    """
    return sum(_row_bytes(type_k, k) + _row_bytes(type_v, v) for k, v in _rows(info))


def attention_shape(info: GGUFInfo) -> tuple[int, int]:
    """Layers, and heads of the layer that has most; 0 where the header does not say."""
    layers = _number(info, "block_count")
    return layers, max(_per_layer(info, "attention.head_count", layers), default=0)


def state_bytes_per_sequence(info: GGUFInfo) -> int:
    """Bytes that state-space layers keep of one sequence, as if every layer were one.

    (``llama_hparams::n_embd_r`` and ``n_embd_s``, float32.)
    """
    names = ("inner_size", "state_size", "conv_kernel", "group_count")
    inner, state, kernel, groups = (_number(info, f"ssm.{name}") for name in names)
    row = inner * state + max(kernel - 1, 0) * (inner + 2 * groups * state)
    return _number(info, "block_count") * row * 4


def ragged_row(info: GGUFInfo, type_k: str) -> int:
    """K values of a token in a layer where they are no whole blocks of `type_k`; 0 = nowhere.

    libllama looks at this only where attention is flash attention, and ends the process otherwise.
    """
    block, _ = GGML_TYPES[KV_TYPES[type_k]]
    return next((k for k, _ in _rows(info) if k % block), 0)


def _rows(info: GGUFInfo) -> list[tuple[int, int]]:
    """K and V values of one token in each layer; empty where the header does not say."""
    layers = max(_number(info, "block_count") - _number(info, "nextn_predict_layers"), 0)
    heads = _per_layer(info, "attention.head_count", layers)
    heads_kv = _per_layer(info, "attention.head_count_kv", layers) or heads
    widest = max(heads, default=0)
    if not layers or not widest:
        return []
    head = _number(info, "embedding_length") // widest
    key = _number(info, "attention.key_length") or head
    value = _number(info, "attention.value_length") or head
    if _number(info, "attention.key_length_mla"):
        value = 0
    return [(n * key, n * value) for n in heads_kv[:layers]]


def _row_bytes(name: str, count: int) -> int:
    if name not in KV_TYPES:
        raise GGUFError(f"there is no KV type {name!r}; take one of {', '.join(KV_TYPES)}")
    block, width = GGML_TYPES[KV_TYPES[name]]
    return -(-count // block) * width


def _number(info: GGUFInfo, name: str) -> int:
    value = info.metadata.get(f"{info.architecture}.{name}", 0)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def _per_layer(info: GGUFInfo, name: str, layers: int) -> list[int]:
    """A value that the header gives once or once a layer, as a list with an entry a layer."""
    value = info.metadata.get(f"{info.architecture}.{name}")
    if isinstance(value, list):
        return [v for v in value if isinstance(v, int) and 0 <= v < 1 << 31]
    # One number for all layers: no list of `layers` entries, which a damaged header may make huge.
    number = _number(info, name)
    return [number] * min(layers, 4096) if number else []
