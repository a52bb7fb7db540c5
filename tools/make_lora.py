"""Write a LoRA adapter with random weights for a GGUF model, for tests.

Its pairs of matrices change what each layer's attention asks for and answers.  What a model says
with it is other noise than without it.  Names and keys are those of ``convert_lora_to_gguf.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import gguf_container as container  # noqa: E402

from umaserve.models.gguf.faults import check_gguf  # noqa: E402

F32 = 0
CHANGED = ("attn_q.weight", "attn_output.weight")


def write_lora(
    model: Path, out: Path, *, seed: int = 1, rank: int = 4, architecture: str = ""
) -> Path:
    """Write an adapter of ``model``; returns its path.

    ``architecture``: another one than the model's.
    """
    info, random = check_gguf(model), np.random.default_rng(seed)
    keys: dict[str, str | float] = {
        "general.type": "adapter",
        "general.architecture": architecture or info.architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(rank),
    }
    found = {}
    for tensor in info.tensors:
        if not tensor.name.endswith(CHANGED):
            continue
        n_in, n_out = tensor.shape
        for name, dims in (("lora_a", (n_in, rank)), ("lora_b", (rank, n_out))):
            values = random.standard_normal(dims[0] * dims[1], np.float32)
            raw = (values * np.float32(1 / np.sqrt(dims[0]))).astype("<f4").tobytes()
            found[f"{tensor.name}.{name}"] = dims, F32, raw
    values = {name: container.Value.of(value) for name, value in keys.items()}
    out.write_bytes(container.whole(values, found))
    return out
