"""What it costs that all sequences share one KV cache: ticks of the bare library.

    python -m benchmarks.unified_cache
    python -m benchmarks.unified_cache --rows 8 --depth 256

Two contexts of the same size, one whose sequences share all cells (``kv_unified``, as the daemon
has it), one that gives each sequence its part of them (llama-server with a number of slots).  Every
sequence is filled to ``--depth`` tokens; then ``--rows`` of them decode one token, in turns.  In a
shared cache a token's attention passes over the cells of the others too, and leaves them out by a
mask.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks import machine
from benchmarks.models import model_path
from benchmarks.turns import say
from umaserve import llama

SEQUENCES, CELLS, CHUNK = 32, 16384, 512
_STEP = 7919  # from token to token


class Cache:
    """A context and its sequences, each filled to ``depth``."""

    def __init__(self, model: llama.Model, unified: bool, threads: int, depth: int) -> None:
        self._lib, self._n_vocab = model.library.lib, model.n_vocab
        self._context = llama.Context.open(
            model, n_ctx=CELLS, n_batch=CHUNK, n_ubatch=CHUNK, n_seq_max=SEQUENCES,
            n_threads=threads, n_threads_batch=threads, kv_unified=unified,
        )  # fmt: skip
        self._batch = self._lib.llama_batch_init(CHUNK, 0, 1)
        for sequence in range(SEQUENCES):
            for first in range(0, depth, CHUNK):
                self._decode([(sequence, p) for p in range(first, min(depth, first + CHUNK))])

    def tick(self, rows: int, position: int) -> float:
        """Decode a token of the first ``rows`` sequences; ms."""
        return self._decode([(sequence, position) for sequence in range(rows)])

    def _decode(self, tokens: list[tuple[int, int]]) -> float:
        batch = self._batch
        for i, (sequence, position) in enumerate(tokens):
            batch.token[i] = 1 + _STEP * (position + 97 * sequence) % (self._n_vocab - 1)
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = position, 1, True
            batch.seq_id[i][0] = sequence
        batch.n_tokens = len(tokens)
        began = time.perf_counter()
        status = self._lib.llama_decode(self._context.pointer, batch)
        self._lib.llama_synchronize(self._context.pointer)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--quant", default="q8_0")
    parser.add_argument("--rows", type=int, default=SEQUENCES, help=f"at most {SEQUENCES}")
    parser.add_argument("--depth", type=int, default=256,
                        help=f"tokens of each sequence, under {CELLS // SEQUENCES}")  # fmt: skip
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not 1 <= options.rows <= SEQUENCES:
        parser.error(f"--rows {options.rows}: 1 to {SEQUENCES}")
    if not 1 <= options.depth <= CELLS // SEQUENCES - options.ticks - 1:
        parser.error(f"--depth and --ticks need {CELLS // SEQUENCES} cells at most")
    library = llama.load(machine.BACKEND)
    model = llama.Model.open(library, str(model_path(options.model, options.quant)))
    caches = {}
    for name, unified in (("shared", True), ("apart", False)):
        say(f"unified_cache: filling {SEQUENCES} sequences, {name}")
        caches[name] = Cache(model, unified, options.threads, options.depth)
    took: dict[str, list[float]] = {name: [] for name in caches}
    for turn in range(options.ticks + 1):
        for name, cache in caches.items():
            ms = cache.tick(options.rows, options.depth + turn)
            if turn:  # the first pays for buffers
                took[name].append(ms)
    for name, ms in took.items():
        print(f"{name:7} median {statistics.median(ms):.1f} ms, {min(ms):.1f} to {max(ms):.1f}")
    print(f"ratio   {statistics.median(took['shared']) / statistics.median(took['apart']):.2f}")


if __name__ == "__main__":
    main()
