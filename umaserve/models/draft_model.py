"""A draft model: the KV cells and the memory that it takes beside the model that is served."""

from __future__ import annotations

from .gguf import check_gguf
from .header import GGUFError
from .kv_shape import KvKind, KvShape, padded

CELLS = 16_384  # KV cells at most: longer texts have no drafts of it


def is_asked_for(path: str, speculate: str) -> bool:
    """Whether it is loaded: --speculate may have no use for it."""
    return bool(path) and speculate in ("auto", "draft")


def draft_cells(n_ctx: int) -> int:
    """KV cells of its context; ``n_ctx``: those of the model's own, 0 where nobody chose."""
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
