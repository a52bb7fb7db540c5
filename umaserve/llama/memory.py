"""How many bytes a model will take, from its GGUF header alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.kv_shape import HeaderNumbers, KvKind, KvShape
from umaserve.models.states import StateShape


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes: `weight_bytes` of the tensors, `kv_bytes` of the KV cells, `state_bytes` of what
    recurrent layers keep of one sequence.

    Not counted: libllama's compute buffers, which depend on the backend and the batch.
    """

    weight_bytes: int
    kv_bytes: int
    state_bytes: int = 0


def memory_needed(
    path: str | os.PathLike[str], *, n_ctx: int, kind: KvKind | None = None
) -> MemoryNeed:
    """Bytes needed to serve the model at `path` with `n_ctx` KV cells of that `kind` (f16).

    A model whose header lacks the attention's shape (a recurrent one) counts no KV cells. Raises
    `GGUFError`.
    """
    info = check_gguf(path)
    cells = n_ctx * kv_bytes_per_cell(info, kind)
    return MemoryNeed(info.tensor_bytes, cells, state_shape(info).n_bytes)


def kv_bytes_per_cell(info: GGUFInfo, kind: KvKind | None = None) -> int:
    """Bytes that one token occupies in KV cells of that `kind` (f16) over all layers."""
    return KvShape.of(info.architecture, info.metadata).bytes_per_cell(kind or KvKind())


def attention_shape(info: GGUFInfo) -> tuple[int, int]:
    """Layers, and heads of the layer that has most; 0 where the header does not say."""
    header = HeaderNumbers(info.architecture, info.metadata)
    layers = header.number("block_count")
    # a number for all layers is not repeated: a damaged header may claim any number of layers
    return layers, max(header.numbers("attention.head_count", min(layers, 1)), default=0)


def state_shape(info: GGUFInfo) -> StateShape:
    """Recurrent states of the model."""
    return StateShape.of(info.architecture, info.metadata)
