"""How much a load takes: KV cells and memory, and why they cannot be had."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from umaserve import llama
from umaserve.llama.memory import attention_shape, kv_bytes_per_cell, state_shape
from umaserve.models.adapter import adapter_bytes
from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.kv_shape import CELL_PADDING, KvKind, KvShape
from umaserve.models.needs import ENGINE_BYTES, LEAST_CELLS
from umaserve.models.projector import projector_bytes
from umaserve.models.states import RESERVED, TEXTS_AT_ONCE
from umaserve.wire import messages as m

OTHER_KV_TYPE = "; take --kv-type f16, for K or V alone as in q8:f16"
TENSOR_ALIGNMENT = 32  # ggml's
DEFAULT_UBATCH = 512
MOST_CELLS = 1 << 24  # as of --n-ctx
SHARE = 2  # one part in so many of the memory that is left is the KV cells' and what goes with them
# Cells in main memory take no more than the weights, or than this.  For libllama writes to all of
# them at start, which takes half a second and more for a GiB.
SMALL_BYTES = 1 << 30
MASK_BYTES = 2  # of the attention's mask, for a cell and a token computed at once
SCORE_BYTES = 8  # for these two and a head, where attention is not flash attention
TABLE_BYTES = 176  # of the session table for a token that has all log-probabilities
ASIDE_BATCH, ASIDE_BATCH_CPU = 512, 128  # tokens that a second context computes at once


class Fit(NamedTuple):
    """Bytes that KV cells take in one kind of memory.

    Bytes: ``left`` beside the weights, of a ``cell``, of a cell in the second context (``second``).
    ``most`` is how many cells there may be however much is left.
    """

    left: int
    cell: int
    second: int
    most: int

    def cells(self, positions: int) -> int:
        """KV cells that the share of what is ``left`` bears.

        Beside them there has to be room for a second cache with the prompt of one session, which
        has up to ``positions`` tokens.
        """
        share = self.left // SHARE
        n = share // (self.cell + self.second)
        if n > positions:
            n = (share - positions * self.second) // self.cell
        return min(n, self.most)


def auto_cells(start: m.Start, fits: list[Fit]) -> int:
    """KV cells where nobody said how many: what memory bears, at most what sessions can use."""
    positions = start.positions
    most = min(positions * start.n_seq, MOST_CELLS)
    n = min([most, *(fit.cells(positions) for fit in fits)])
    return max(n // CELL_PADDING * CELL_PADDING, min(LEAST_CELLS, most))


def after_refusal(start: m.Start, n_ctx: int) -> int:
    """KV cells to try after libllama did not make ``n_ctx``; 0 = no others."""
    return n_ctx // 2 if not start.n_ctx and n_ctx // 2 >= LEAST_CELLS else 0


def find_fits(
    start: m.Start, info: GGUFInfo, devices: list[dict[str, Any]], available: int, also: int = 0
) -> list[Fit]:
    """Main memory and the accelerator's, before the weights come; whichever is to hold KV cells.

    ``devices`` as ``llama.devices`` has them, ``available`` bytes of main memory.  Memory of which
    the system does not say what is free (0) is left out.  ``also``: bytes of a draft model, which
    lies where the layers are, as adapters do.
    """
    also += _adapter_bytes(start)
    n_ubatch = start.n_ubatch or DEFAULT_UBATCH
    layers, heads = attention_shape(info)
    kv = kv_bytes_per_cell(info, kv_kind(start))
    fixed = ENGINE_BYTES + state_shape(info).total(_sequences(start))
    fixed += projector_bytes(start.mmproj)
    a_token = MASK_BYTES
    if start.head_major or start.flash_attn == "off":
        a_token += SCORE_BYTES * heads
    gpus = [d for d in devices if d["type"] == "gpu"] or [d for d in devices if d["type"] == "igpu"]
    share = 0.0  # of the layers that lie there
    if gpus and start.gpu_layers:
        share = 1.0 if start.gpu_layers < 0 else min(start.gpu_layers / max(layers, 1), 1.0)
    fits = []
    if share and all(gpu["memory_total"] for gpu in gpus):
        weights = int(share * (info.tensor_bytes + also))
        left = sum(gpu["memory_free"] for gpu in gpus) - weights - fixed
        cell = int(share * kv)
        second = cell + a_token * ASIDE_BATCH
        fits.append(Fit(left, cell + a_token * n_ubatch, second, MOST_CELLS))
    # what lies in memory that both share is in main memory too
    shared = share > 0.0 and (sys.platform == "darwin" or gpus[0]["type"] == "igpu")
    here = 1.0 if shared else 1.0 - share
    if here and available:
        # mapped weights would count as available, and are to stay
        left = available - int(here * (info.tensor_bytes + also)) - fixed
        cell = int(here * kv)
        second = cell + a_token * (ASIDE_BATCH if shared else ASIDE_BATCH_CPU)
        most = max(info.tensor_bytes, SMALL_BYTES) // max(cell, 1)
        fits.append(Fit(left, cell + a_token * n_ubatch + TABLE_BYTES, second, most))
    return fits


def leave_snapshots(
    start: m.Start, info: GGUFInfo, fits: list[Fit]
) -> tuple[int, list[Fit]]:
    """Earlier states of each sequence that memory bears for drafts, and what they leave of it."""
    if start.speculate == "off" or start.encodes:
        return 0, fits
    shape, n_sequences = state_shape(info), _sequences(start)
    room = min(fit.left - start.n_ctx * fit.cell for fit in fits) if fits else SMALL_BYTES
    n = shape.earlier(n_sequences, room)
    if start.earlier_states >= 0:
        n = min(n, start.earlier_states)
    taken = n * shape.total(n_sequences)
    return n, [fit._replace(left=fit.left - taken) for fit in fits]


def kv_kind(start: m.Start) -> KvKind:
    """Kind of the cells that libllama makes; without flash attention it always transposes V."""
    transposed = start.head_major or start.flash_attn == "off"
    return KvKind(start.type_k, start.type_v, transposed)


def _sequences(start: m.Start) -> int:
    """Sequences of a context with recurrent states; others may have more (`spare_sequences`)."""
    return TEXTS_AT_ONCE if start.encodes else start.n_seq + RESERVED


def _adapter_bytes(start: m.Start) -> int:
    return adapter_bytes(each.path for each in start.adapters)


def why_no_such_cells(start: m.Start, info: GGUFInfo) -> str:
    """Why the KV cells cannot be of the type asked for, before libllama loads anything."""
    return KvShape.of(info.architecture, info.metadata).why_not(kv_kind(start))


def why_no_mapping(start: m.Start, info: GGUFInfo) -> str:
    """Why the weights cannot be mapped, where libllama would end the process."""
    if not start.use_mmap or info.data_offset % TENSOR_ALIGNMENT == 0:
        return ""
    return (
        f"its weights begin at byte {info.data_offset}, no multiple of {TENSOR_ALIGNMENT}, "
        "and cannot be mapped; take --no-mmap"
    )


def why_no_memory(start: m.Start, also: int = 0) -> str:
    """Why this machine cannot hold the model, before libllama tries.

    ``also``: bytes of a draft model, as for `find_fits`.
    """
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return ""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cells = start.n_ctx or min(LEAST_CELLS, start.positions * start.n_seq)
    need = llama.memory_needed(start.model_path, n_ctx=cells, kind=kv_kind(start))
    n_seq = _sequences(start)
    states = n_seq * need.state_bytes
    alone = need.weight_bytes + need.kv_bytes + states
    adapters = _adapter_bytes(start)
    wanted = alone + also + adapters
    if wanted <= total:
        return ""
    gib = 1 << 30
    name = os.path.basename(start.draft_model)
    drafter = f"the draft model {name}" if name else "its own heads"
    return (
        f"the model{'s need' if also else ' needs'} {wanted / gib:.1f} GiB "
        f"({need.weight_bytes / gib:.1f} for the weights"
        f", {need.kv_bytes / gib:.1f} for {cells} KV cells"
        + (f", {states / gib:.1f} for the states of {n_seq} sequences" if states else "")
        + (f", {also / gib:.1f} for {drafter}" if also else "")
        + (f", {adapters / gib:.1f} for the adapters" if adapters else "")
        + f"), and this machine has {total / gib:.1f} GiB of memory; "
        # only where that is enough
        + ("leave --draft-model away, " if name and also and alone + adapters <= total else "")
        + ("leave --lora away, " if adapters and alone + also <= total else "")
        + "take a smaller model or quantisation, "
        + f"or lower --n-ctx{' or --parallel' if states else ''}"
    )
