"""How many bytes a model will take, from its GGUF header alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from umaserve.models.gguf import check_gguf
from umaserve.models.header import GGUFInfo
from umaserve.models.kv_shape import KvKind, KvShape

GO_BACK = frozenset((
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp",
))  # fmt: skip
"""Architectures of which libllama keeps earlier states (``llm_arch_supports_rs_rollback``)."""


_MLP_LAYERS = ("nemotron_h", "nemotron_h_moe")
"""Architectures of which some layers are an MLP alone: they have neither cells nor a state."""


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
    path: str | os.PathLike[str], *, n_ctx: int, kind: KvKind | None = None
) -> MemoryNeed:
    """Bytes needed to serve the model at `path` with `n_ctx` KV cells of that `kind` (f16).

    A model whose header lacks the attention's shape (a recurrent one) counts no KV cells. Raises
    `GGUFError`.
    """
    info = check_gguf(path)
    cells = n_ctx * kv_bytes_per_cell(info, kind)
    return MemoryNeed(info.tensor_bytes, cells, state_bytes_per_sequence(info))


def kv_bytes_per_cell(info: GGUFInfo, kind: KvKind | None = None) -> int:
    """Bytes that one token occupies in KV cells of that `kind` (f16) over all layers."""
    return KvShape.of(info.architecture, info.metadata).bytes_per_cell(kind or KvKind())


def attention_shape(info: GGUFInfo) -> tuple[int, int]:
    """Layers, and heads of the layer that has most; 0 where the header does not say."""
    layers = _number(info, "block_count")
    return layers, max(_per_layer(info, "attention.head_count", layers), default=0)


def state_bytes_per_sequence(info: GGUFInfo) -> int:
    """Bytes that recurrent layers keep of one sequence (``n_embd_r`` and ``n_embd_s``, float32).

    Recurrent are all layers without KV cells, but for draft layers and MLPs.  Where all layers have
    cells, all are recurrent too (Falcon-H1).
    """
    names = ("inner_size", "state_size", "conv_kernel", "group_count")
    inner, state, kernel, groups = (_number(info, f"ssm.{name}") for name in names)
    row = inner * state + max(kernel - 1, 0) * (inner + 2 * groups * state)
    row += _number(info, "embedding_length") * max(_number(info, "shortconv.l_cache") - 1, 0)
    if head := _number(info, "kda.head_dim"):
        row = max(_per_layer(info, "attention.head_count", 1), default=0) * head
        row *= head + 3 * max(kernel - 1, 0)
    layers = _number(info, "block_count") - _number(info, "nextn_predict_layers")
    others = len(KvShape.of(info.architecture, info.metadata).rows)
    if info.architecture in _MLP_LAYERS:
        others += sum(n > 0 for n in _per_layer(info, "feed_forward_length", layers)[:layers])
    return max(layers - others or layers, 0) * row * 4


def _number(info: GGUFInfo, name: str) -> int:
    value = info.metadata.get(f"{info.architecture}.{name}", 0)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def _per_layer(info: GGUFInfo, name: str, layers: int) -> list[int]:
    """A value that the header gives once or once a layer, as a list with an entry a layer."""
    value = info.metadata.get(f"{info.architecture}.{name}")
    if isinstance(value, list):
        return [v for v in value if isinstance(v, int) and 0 <= v < 1 << 31]
    # A number for all layers, repeated 4096 times at most: a damaged header may claim more layers.
    number = _number(info, name)
    return [number] * min(layers, 4096) if number else []
