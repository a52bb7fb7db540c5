"""What it costs that a prompt chunk beside the ticks can be stopped, and what one that waits costs.

    UMA_BACKEND=cuda python -m benchmarks.gate_costs --model qwen3-30b-a3b

Medians of ``--times``: ms of a chunk without stops, with the gate open (a stop every few matrix
products) and with a stop at each (`umaserve.engine.prefill.gate`), and the longest part of one;
then ticks of one row alone and while a chunk in another context waits at the closed gate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time

import numpy as np

from benchmarks import machine
from benchmarks.models import model_path
from umaserve import llama
from umaserve.engine.native.batch import Batch
from umaserve.engine.prefill import gate as g

SIZES = (128, 256, 512)
PAST = 384  # tokens behind the row that decodes


class Side:
    """A context and a batch; ``gate`` None: its chunks cannot be stopped."""

    def __init__(self, model: llama.Model, gate: g.Gate | None, wake_read: int) -> None:
        others = {} if gate is None else g.hang(gate, model.library, wake_read)
        self.model, self.gate = model, gate
        self.context = llama.Context.open(
            model, n_ctx=2048, n_batch=SIZES[-1], n_ubatch=SIZES[-1],
            n_threads=os.cpu_count() or 1, **others,
        )  # fmt: skip
        self.batch = Batch(model.library.ffi, SIZES[-1], 1)

    def decode(self, p0: int, n: int, logits: bool = False) -> float:
        """``n`` tokens from position ``p0`` on; ms."""
        arrays = self.batch.arrays
        # different ids: a mixture of experts sends equal tokens to the same ones
        arrays.token[:n] = 1 + 7919 * np.arange(p0, p0 + n) % (self.model.n_vocab - 1)
        arrays.pos[:n] = np.arange(p0, p0 + n)
        arrays.seq[:n] = arrays.logits[:n] = 0
        arrays.logits[n - 1] = logits
        arrays.n_tokens[0] = n
        if self.gate is not None:
            g.begin_chunk(self.gate, n)
        self.context.seq_rm(0, p0, -1)
        began = time.perf_counter()
        if self.model.library.lib.uma_decode(self.context.pointer, self.batch.struct) != 0:
            raise RuntimeError("llama_decode failed")
        self.context.synchronize()
        return 1e3 * (time.perf_counter() - began)


def _median(side: Side, p0: int, n: int, times: int, logits: bool = False) -> float:
    side.decode(p0, n, logits)
    return statistics.median(side.decode(p0, n, logits) for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="demo, a shape of make_model.py, or a path")
    parser.add_argument("--times", type=int, default=12)
    options = parser.parse_args()
    library, gate, (wake_read, _) = llama.load(machine.BACKEND), g.new_gate(), os.pipe()
    os.set_blocking(wake_read, False)
    with llama.Model.open(library, model_path(options.model), n_gpu_layers=-1) as model:
        plain, gated, row = Side(model, None, -1), Side(model, gate, wake_read), Side(
            model, None, -1
        )  # fmt: skip
        print(f"{'tokens':>8}{'no stops':>10}{'open':>10}{'each':>10}{'longest':>10}   ms")
        for n in SIZES:
            without, opened = (_median(side, 0, n, options.times) for side in (plain, gated))
            gate.measure = 1
            gated.decode(0, n)
            g.forget_times(gate, n)
            each = _median(gated, 0, n, options.times)
            longest = g.longest_ms(gate)
            gate.measure = 0
            print(f"{n:8}{without:10.2f}{opened:10.2f}{each:10.2f}{longest:10.3f}", flush=True)
        for first in range(0, PAST, SIZES[0]):
            row.decode(first, SIZES[0])
        alone = _median(row, PAST, 1, 8 * options.times, True)
        gate.until = 0
        chunk = threading.Thread(target=gated.decode, args=(0, SIZES[-1]))
        chunk.start()
        while not gate.parked:
            time.sleep(0.001)
        beside = _median(row, PAST, 1, 8 * options.times, True)
        gate.until = g.OPEN
        chunk.join()
        print(f"a row alone {alone:.2f} ms, beside a chunk that waits {beside:.2f} ms")
        for side in (plain, gated, row):
            side.context.close()


if __name__ == "__main__":
    main()
