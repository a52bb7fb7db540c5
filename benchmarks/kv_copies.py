"""What it takes to move KV cells between two contexts, through ordinary and through pinned memory.

    UMA_BACKEND=cuda python -m benchmarks.kv_copies --model qwen3-30b-a3b

A prompt that is computed beside the ticks gets into the engine's context this way, in pieces: out
of one (`export_piece`), into the other (`import_piece`).  Medians of ``--times``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks import machine
from benchmarks.models import model_path
from umaserve import llama
from umaserve.engine.cells.piece import Piece, export_piece, import_piece, ordinary
from umaserve.engine.native.batch import Batch
from umaserve.llama.host_memory import HostMemory

SIZES = (32, 64, 128, 256, 512)
SPARE, SEQUENCES = 2, 3


def _context(model: llama.Model) -> llama.Context:
    return llama.Context.open(
        model, n_ctx=2048, n_batch=SIZES[-1], n_ubatch=SIZES[-1], n_seq_max=SEQUENCES
    )


def _fill(model: llama.Model, context: llama.Context) -> None:
    n = SIZES[-1]
    batch = Batch(model.library.ffi, n, 1)
    arrays = batch.arrays
    arrays.token[:n] = 1 + 7919 * np.arange(n) % (model.n_vocab - 1)
    arrays.pos[:n] = np.arange(n)
    arrays.n_tokens[0] = n
    status = model.library.lib.uma_decode(context.pointer, batch.struct)
    if status != 0:
        raise RuntimeError(f"llama_decode: {status}")
    context.synchronize()


def _measure(
    source: llama.Context, target: llama.Context, size: int, times: int,
    fresh: Callable[[int], np.ndarray],
) -> tuple[float, float, float]:  # fmt: skip
    """Median ms out and in, and MB."""
    out, into, room = [], [], None
    for _ in range(times):
        began = time.perf_counter()
        room, used = export_piece(source, 0, SPARE, 0, size, room, fresh)
        out.append(time.perf_counter() - began)
        target.seq_rm(1)
        began = time.perf_counter()
        if not import_piece(target, 1, SPARE, Piece(0, 0, 0, 0, size, room, used)):
            raise RuntimeError(f"{size} cells were not taken")
        into.append(time.perf_counter() - began)
    return 1e3 * statistics.median(out), 1e3 * statistics.median(into), used / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="demo, a shape of make_model.py, or a path")
    parser.add_argument("--times", type=int, default=8)
    options = parser.parse_args()
    library = llama.load(machine.BACKEND)
    with llama.Model.open(library, model_path(options.model), n_gpu_layers=-1) as model:
        source, target, host = _context(model), _context(model), HostMemory(library)
        _fill(model, source)
        print(f"{'memory':10}{'tokens':>8}{'MB':>8}{'out, ms':>10}{'in, ms':>10}")
        for name, fresh in (("ordinary", ordinary), ("pinned", host.array)):
            for size in SIZES:
                out, into, mb = _measure(source, target, size, options.times, fresh)
                print(f"{name:10}{size:8}{mb:8.2f}{out:10.3f}{into:10.3f}", flush=True)
        source.close()
        target.close()
        host.close()


if __name__ == "__main__":
    main()
