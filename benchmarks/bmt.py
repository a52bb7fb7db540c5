"""ΣBMT against what is really read: estimated bytes beside pages touched and time taken.

``python -m benchmarks.bmt --model qwen2.5-0.5b``: ticks of the bare library, one and several
decoding rows, prompts, and both.  Two measurements stand beside each estimate:

- **touched** (Linux, processor backend): the kernel notes which pages a process reads.  The notes
  are cleared, one tick is computed, and they are read again (``/proc/self/clear_refs`` and
  ``smaps``; proc(5)).  This says which bytes are needed at all, each counted once, whatever cache
  they came from; weights apart from the rest, as they are a mapped file.  KV cells are the
  difference to a tick of sequences that hold none, in the same cache; a few MB of noise.
- **time**: the estimate over the time inside libllama, beside the bandwidth that
  ``probe_bandwidth`` finds.  It shows which ticks are bound by bandwidth.

Counters of the memory controller would say what came from memory.  Virtual machines rarely have
them and containers must not read them, so nothing here depends on them.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import BACKEND, build, save
from benchmarks.models import model_path
from benchmarks.turns import say
from umaserve import llama
from umaserve.engine.native.batch import Batch
from umaserve.engine.start.bandwidth_probe import probe_bandwidth
from umaserve.llama.traffic import Traffic
from umaserve.models.gguf.faults import check_gguf
from umaserve.policy.bytes import bandwidth
from umaserve.system.processor import logical_cores

_SELF = Path("/proc/self")
_PR_SET_THP_DISABLE = 41
_TRIES = 9


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="qwen2.5-0.5b", help="a shape of make_model.py, or a path")
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--rows", default="1,2,4,8", help="decoding rows of a tick")
    out.add_argument("--prompts", default="16,128", help="prompt tokens, alone and beside one row")
    out.add_argument("--depth", type=int, default=512, help="KV cells that each row holds")
    out.add_argument("--rounds", type=int, default=7, help="timed ticks of each kind")
    out.add_argument("--threads", type=int, default=logical_cores())
    out.add_argument("--name", default="", help="of the result file")
    return out


class Ticks:
    """A context with ``rows`` sequences of ``depth`` cells, and batches on top of them."""

    def __init__(self, path: Path, rows: int, depth: int, prompt: int, threads: int) -> None:
        self.library = llama.load(BACKEND)
        # pages are only those of the file while no other copy of the weights is used
        self.model = llama.Model.open(self.library, path, n_gpu_layers=-1, repack=False)
        self.rows, self.depth = rows, depth
        room = rows * (depth + 2) + prompt
        self.n_ctx = -(-room // bandwidth.KV_PAD) * bandwidth.KV_PAD
        n_batch = max(depth, prompt + 1, 2 * rows + 1)  # libllama: at least a token a sequence
        self.context = llama.Context.open(
            self.model, n_ctx=self.n_ctx, n_batch=n_batch, n_ubatch=512, n_seq_max=2 * rows + 1,
            n_threads=threads,
        )  # fmt: skip
        self.batch = Batch(self.library.ffi, n_batch, 1)
        self.random = np.random.default_rng(1)
        # more pages than any processor's own table of addresses (TLB) holds
        self.elsewhere = np.ones((64 << 20) // 8)
        for row in range(rows if depth else 0):
            self._decode([(row, 0, depth, 0)])

    def close(self) -> None:
        self.context.close()
        self.model.close()

    def run(self, rows: int, prompt: int, fresh: bool = False) -> float:
        """Seconds of one tick; the cache is left as it was found.

        ``rows`` sequences decode; ``fresh`` takes some that hold no cell yet.  ``prompt`` tokens
        belong to one more sequence; the last of them asks for logits, as the rows do.
        """
        first = self.rows if fresh else 0
        start = 0 if fresh else self.depth
        parts = [(first + row, start, 1, 1) for row in range(rows)]
        if prompt:
            parts.append((2 * self.rows, 0, prompt, 1))
        seconds = self._decode(parts)
        for seq, at, _, _ in parts:
            self.context.seq_rm(seq, at, -1)
        return seconds

    def _decode(self, parts: list[tuple[int, int, int, int]]) -> float:
        """(sequence, first position, tokens, whether the last asks for logits), ..."""
        arrays, n = self.batch.arrays, 0
        for seq, at, count, wanted in parts:
            here = slice(n, n + count)
            arrays.token[here] = self.random.integers(0, self.model.n_vocab, count)
            arrays.pos[here] = np.arange(at, at + count)
            arrays.seq[here] = seq
            arrays.logits[here] = 0
            n += count
            arrays.logits[n - 1] = wanted
        arrays.n_tokens[0] = n
        lib, began = self.library.lib, time.perf_counter()
        status = lib.llama_decode(self.context.pointer, self.batch.struct[0])
        lib.llama_synchronize(self.context.pointer)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return time.perf_counter() - began


def can_see_pages() -> bool:
    """Whether this system says which pages a process touched, and the weights are such pages."""
    return build().backend == "cpu" and (_SELF / "clear_refs").exists()


def small_pages() -> None:
    """Ask for pages of the usual size from now on, so that touched ones are counted finely."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def touched(ticks: Ticks, rows: int, prompt: int, fresh: bool = False) -> tuple[int, int]:
    """Bytes of the pages that one tick touches: of the model's file, and all others.

    The middle of some tries: the kernel can miss a page that was read (other jobs of it clear the
    same notes, and a page whose address the processor still holds is not noted), and can count
    pages that were not: a fault maps its neighbours too, and a large folio that reclaim found in
    use counts whole.
    """
    ticks.run(rows, prompt, fresh)  # whatever is set up once
    state, found = ticks.random.bit_generator.state, []
    for _ in range(_TRIES):
        ticks.random.bit_generator.state = state  # the same tokens choose the same experts
        found.append(_touched_once(ticks, rows, prompt, fresh))
    weights, others = (int(statistics.median(column)) for column in zip(*found, strict=True))
    return weights, others


def _touched_once(ticks: Ticks, rows: int, prompt: int, fresh: bool) -> tuple[int, int]:
    (_SELF / "clear_refs").write_text("1")
    ticks.elsewhere.sum()  # clearing leaves the processor's own table of addresses as it is
    ticks.run(rows, prompt, fresh)
    weights = others = 0
    in_file = False
    for line in (_SELF / "smaps").read_text().splitlines():
        word = line.split(maxsplit=5)
        if not word[0].endswith(":"):
            in_file = len(word) == 6 and word[5] == str(ticks.model.path)
        elif word[0] == "Referenced:":
            if in_file:
                weights += int(word[1]) * 1024
            else:
                others += int(word[1]) * 1024
    return weights, others


def one(ticks: Ticks, traffic: Traffic, rows: int, prompt: int, rounds: int) -> dict[str, Any]:
    """Estimate and measurements of one kind of tick."""
    outputs, tokens = rows + (prompt > 0), rows + prompt
    span = bandwidth.attention_span(ticks.rows * ticks.depth + tokens, ticks.n_ctx)
    own = rows * ticks.depth + tokens
    read = own if build().backend == "cpu" else span
    estimate = bandwidth.tick_bytes(traffic, outputs, tokens, read, tokens, span)
    weights = bandwidth.weight_bytes(traffic, outputs, tokens)
    ticks.run(rows, prompt)
    ms = 1e3 * statistics.median(ticks.run(rows, prompt) for _ in range(rounds))
    found: dict[str, Any] = {
        "rows": rows,
        "prompt": prompt,
        "estimate_mb": estimate / 1e6,
        "weights_mb": weights / 1e6,
        "kv_mb": rows * ticks.depth * traffic.kv_cell / 1e6,
        "ms": ms,
        "gbps": estimate / ms / 1e6,
    }
    if can_see_pages():
        file, others = touched(ticks, rows, prompt)
        found["touched_weights_mb"] = file / 1e6
        found["weights_ratio"] = weights / file
        if rows and not prompt:
            found["touched_kv_mb"] = (others - touched(ticks, rows, prompt, fresh=True)[1]) / 1e6
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    small_pages()
    rows = [int(n) for n in options.rows.split(",") if n]
    prompts = [int(n) for n in options.prompts.split(",") if n]
    path = model_path(options.model, options.quant).resolve()
    most = max(prompts, default=0)
    ticks = Ticks(path, max(rows), options.depth, most, options.threads)
    traffic = Traffic.of(check_gguf(ticks.model.path))
    cpu = build().backend == "cpu"
    probe = probe_bandwidth(0.1, options.threads, ticks.model.size_bytes) if cpu else None
    try:
        kinds = [(n, 0) for n in rows] + [(n, p) for p in prompts for n in (0, 1)]
        found = []
        for n, p in kinds:
            say(f"bmt: {n} rows, {p} prompt tokens")
            found.append(one(ticks, traffic, n, p, options.rounds))
    finally:
        ticks.close()
    return {
        "model": f"{options.model} {options.quant}",
        "threads": options.threads,
        "depth": options.depth,
        "probe_gbps": None if probe is None else probe / 1e9,
        "traffic": traffic._asdict(),
        "ticks": found,
    }


def main() -> None:
    options = parser().parse_args()
    result = measure(options)
    probe = result["probe_gbps"]
    print(f"{result['model']}, {result['threads']} threads, {result['depth']} KV cells a row")
    print("memory read by the probe:", "not measured" if probe is None else f"{probe:.1f} GB/s")
    print("rows prompt  estimate  weights touched   KV touched       ms   GB/s of estimate")
    for tick in result["ticks"]:
        weights, kv = tick.get("touched_weights_mb"), tick.get("touched_kv_mb")
        print(
            f"{tick['rows']:4d} {tick['prompt']:6d} {tick['estimate_mb']:6.1f} MB "
            f"{tick['weights_mb']:7.1f} {'-' if weights is None else f'{weights:.1f}':>7} "
            f"{tick['kv_mb']:6.1f} {'-' if kv is None else f'{kv:.1f}':>7} "
            f"{tick['ms']:8.2f} {tick['gbps']:6.1f}"
            + ("" if probe is None else f"  {tick['gbps'] / probe:4.0%} of the probe")
        )
    print("written to", save(options.name or "bmt", result).name)


if __name__ == "__main__":
    main()
