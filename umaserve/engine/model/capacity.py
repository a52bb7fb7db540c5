"""How much a load takes: KV cells and memory, and why they cannot be had."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from umaserve.wire import messages as m

if TYPE_CHECKING:
    from umaserve.models.header import GGUFInfo

OTHER_KV_TYPE = "; take --kv-type f16, for K or V alone as in q8:f16"
TENSOR_ALIGNMENT = 32  # ggml's
CELL_PADDING = 256  # libllama makes a multiple of so many KV cells


def context_size(start: m.Start, trained: int) -> int:
    """KV cells: those asked for, or where nobody asked no more than all sequences can use."""
    most = trained * start.n_seq
    return most if start.clamp_ctx and 0 < most < start.n_ctx else start.n_ctx


def padded(n_ctx: int) -> int:
    """KV cells that libllama makes of so many, which it bounds a batch by before it does."""
    return -(-n_ctx // CELL_PADDING) * CELL_PADDING


def why_no_such_cells(start: m.Start, info: GGUFInfo) -> str:
    """Why the KV cells cannot be of the type asked for, where libllama would end the process."""
    from umaserve.llama.memory import ragged_row

    row = ragged_row(info, start.type_k) if start.head_major else 0
    if not row:
        return ""
    return (
        f"a layer of the model keeps {row} K values of a token, which are no whole blocks of "
        f"{start.type_k}{OTHER_KV_TYPE}"
    )


def why_no_mapping(start: m.Start, info: GGUFInfo) -> str:
    """Why the weights cannot be mapped, where libllama would end the process."""
    if not start.use_mmap or info.data_offset % TENSOR_ALIGNMENT == 0:
        return ""
    return (
        f"its weights begin at byte {info.data_offset}, no multiple of {TENSOR_ALIGNMENT}, "
        "and cannot be mapped; take --no-mmap"
    )


def why_no_memory(start: m.Start) -> str:
    """Why this machine cannot hold the model, before libllama tries."""
    from umaserve import llama

    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return ""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    need = llama.memory_needed(
        start.model_path, n_ctx=start.n_ctx, type_k=start.type_k, type_v=start.type_v
    )
    states = start.n_seq * need.state_bytes
    wanted = need.weight_bytes + need.kv_bytes + states
    if wanted <= total:
        return ""
    gib = 1 << 30
    return (
        f"the model needs {wanted / gib:.1f} GiB ({need.weight_bytes / gib:.1f} for the "
        f"weights, {need.kv_bytes / gib:.1f} for {start.n_ctx} KV cells"
        + (f", {states / gib:.1f} for the states of {start.n_seq} sequences" if states else "")
        + f"), and this machine has {total / gib:.1f} GiB of memory; take a smaller model or "
        f"quantisation, or lower --n-ctx{' or --parallel' if states else ''}"
    )
