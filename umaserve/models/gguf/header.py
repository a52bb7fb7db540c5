"""Contents of a GGUF file's header."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class GGUFError(Exception):
    """A file is not a GGUF model that can be loaded; the message is meant for a user."""


class GGUFTensor(NamedTuple):
    """A tensor's entry: name, dimensions (row length first), ggml type id, bytes of its data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    n_bytes: int


@dataclass(frozen=True)
class GGUFInfo:
    """Contents of a GGUF file's header.

    `metadata` holds scalars, strings and number arrays of up to 4096 entries; longer arrays and
    arrays of strings (vocabularies) are in `array_lengths` only. `tensor_bytes` counts the weights
    of this file and of the further files of a split model; `file_bytes` and `tensors` likewise.
    """

    path: Path
    architecture: str
    metadata: dict[str, object]
    array_lengths: dict[str, int]
    tensor_bytes: int
    file_bytes: int
    data_offset: int
    tensors: tuple[GGUFTensor, ...] = field(default=(), repr=False)
