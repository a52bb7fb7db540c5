"""LoRA adapters: the memory that their matrices take."""

from __future__ import annotations

from collections.abc import Iterable

from .gguf.faults import check_gguf
from .gguf.header import GGUFError

MATRICES = (".lora_a", ".lora_b")


def adapter_bytes(paths: Iterable[str]) -> int:
    """Return the bytes that libllama allocates for adapters: both matrices of each weight.

    It allocates them in the types of the file, where the model's layers are.
    """
    return sum(map(_bytes_of, paths))


def _bytes_of(path: str) -> int:
    try:
        tensors = check_gguf(path).tensors
    except (GGUFError, OSError):  # the engine says why
        return 0
    return sum(each.n_bytes for each in tensors if each.name.endswith(MATRICES))
