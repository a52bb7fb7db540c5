"""KV cells and memory of a draft model, or of a model's own heads (MTP)."""

from __future__ import annotations

from collections.abc import Mapping

from .gguf.faults import check_gguf
from .gguf.header import GGUFError
from .kv_shape import KvKind, KvShape, padded

CELLS = 16_384  # KV cells of a draft model at most: longer texts have no drafts of it
HEAD_CELLS = 65_536  # KV cells of a model's own heads (MTP) at most; they have one layer
HEAD_BUFFERS = 140 << 20  # of the heads' context, and of the hidden states that it reads, roughly
HEAD_FAMILIES = ("qwen35", "qwen35moe", "glm4moe")
"""Architectures whose graph of the heads was tried.  libllama ends the process where there is none
(``LLM_GRAPH_TYPE_DECODER_MTP``)."""


def is_asked_for(path: str, speculate: str) -> bool:
    """Return whether a draft model is loaded: --speculate may have no use for it."""
    return bool(path) and speculate in ("auto", "draft")


def head_cells(n_ctx: int) -> int:
    """KV cells of the heads' context, as `draft_cells`."""
    return padded(min(HEAD_CELLS, n_ctx or HEAD_CELLS))


def head_bytes(shape: KvShape, n_ctx: int) -> int:
    """Bytes of the heads' KV cells and buffers; their weights are among those of the model."""
    cell = 2 * max((k + v for k, v in shape.rows), default=0)
    return head_cells(n_ctx) * cell + HEAD_BUFFERS


def may_have_heads(architecture: str, metadata: Mapping[str, object]) -> bool:
    """Whether a model's own heads may draft, by its header."""
    n = metadata.get(f"{architecture}.nextn_predict_layers")
    return n == 1 and architecture in HEAD_FAMILIES


def draft_cells(n_ctx: int) -> int:
    """KV cells of a draft model; ``n_ctx``: KV cells of the served model, 0 where not set."""
    return padded(min(CELLS, n_ctx or CELLS))


def draft_bytes(path: str, speculate: str, n_ctx: int) -> int:
    """Bytes that it takes in the memory that holds the model's layers; 0 where there is none."""
    if not is_asked_for(path, speculate):
        return 0
    try:
        info = check_gguf(path)
        cell = KvShape.of(info.architecture, info.metadata).bytes_per_cell(KvKind())
    except (GGUFError, OSError):
        return 0  # the engine says why
    return info.tensor_bytes + draft_cells(n_ctx) * cell
