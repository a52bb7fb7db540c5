"""What ticks cost on this machine, by the bare library in a process of its own.

    python -m benchmarks.tick_costs MODEL THREADS [SECONDS]

prints one JSON object: milliseconds of ``llama_decode`` for prompt tokens alone and with the row of
one stream, and of a stream's row while another context of the same model computes prompts, on cores
of its own or on the same accelerator.  Shapes are measured in turns, for SECONDS in all, and none
that takes more than twice the stream alone beside its row; twelve ticks of each at least.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import machine
from benchmarks.free_rate import LONGEST, Aside, Costs, Tick
from benchmarks.timeline import percentile
from umaserve import llama

PROMPTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
DEPTH = 384  # tokens of the stream that are in the KV cache already
PROMPT_TOKENS = 400  # a prompt is this long, then the next begins
ASIDE_PIECE = 64
ASIDE_S = 3.0  # on a processor
ASIDE_PIECES = (16, 32, 64, 128, 256, 512)  # on an accelerator
LEAST = 12  # ticks of each shape: a 95th percentile of fewer says nothing
_STEP = 7919  # from token to token: a mixture of experts sends equal ones to the same experts


class Bench:
    """One context with a stream in sequence 0; prompts come and go in sequence 1."""

    def __init__(self, model: llama.Model, threads: int) -> None:
        self.lib, self.ffi = model.library.lib, model.library.ffi
        self.n_vocab = model.n_vocab
        self.context = llama.Context.open(
            model, n_ctx=4096, n_batch=max(PROMPTS) + 1, n_ubatch=512, n_seq_max=2,
            n_threads=threads, n_threads_batch=threads,
        )  # fmt: skip
        self.batch = self.lib.llama_batch_init(max(PROMPTS) + 1, 0, 1)
        self.at = 0  # of the prompt
        self.depth = 0  # of the stream

    def tick(self, rows: int, prompt: int) -> float:
        """Decode once; milliseconds until the logits are there."""
        if self.at + prompt > max(PROMPT_TOKENS, prompt):
            self.context.seq_rm(1)
            self.at = 0
        if rows and self.depth > 2 * DEPTH:
            self.context.seq_rm(0, DEPTH)
            self.depth = DEPTH
        batch, n = self.batch, 0
        for _ in range(rows):
            self._put(n, 0, self.depth, True)
            self.depth, n = self.depth + 1, n + 1
        for i in range(prompt):
            self._put(n, 1, self.at, i == prompt - 1 and self.at + prompt >= PROMPT_TOKENS)
            self.at, n = self.at + 1, n + 1
        batch.n_tokens = n
        began = time.perf_counter()
        status = self.lib.llama_decode(self.context.pointer, batch)
        self.lib.llama_synchronize(self.context.pointer)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return 1e3 * (time.perf_counter() - began)

    def _put(self, i: int, sequence: int, position: int, logits: bool) -> None:
        batch = self.batch
        batch.token[i] = 1 + _STEP * (position + 1) % (self.n_vocab - 1)
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = logits

    def fill(self) -> None:
        """Bring the stream to its depth."""
        while self.depth < DEPTH:
            n = min(128, DEPTH - self.depth)
            for i in range(n):
                self._put(i, 0, self.depth + i, False)
            self.batch.n_tokens = n
            if self.lib.llama_decode(self.context.pointer, self.batch) != 0:
                raise RuntimeError("the stream's prompt could not be computed")
            self.depth += n


def summary(values: list[float]) -> Tick:
    return Tick(sum(values) / len(values), percentile(values, 95))


def measure(path: str, threads: int, seconds: float) -> Costs:
    """The costs; ``seconds`` is shared by the shapes, ``LEAST`` ticks of each at least."""
    library = llama.load(machine.BACKEND)
    model = llama.Model.open(library, path, n_gpu_layers=-1)
    bench = Bench(model, threads)
    bench.fill()
    solo = min(bench.tick(1, 0) for _ in range(5))
    shapes = [(1, 0)]
    for rows in (1, 0):
        for prompt in PROMPTS:
            bench.tick(rows, prompt)
            took = min(bench.tick(rows, prompt) for _ in range(2))
            if took + (0 if rows else solo) > 2 * LONGEST * solo:
                break
            shapes.append((rows, prompt))
    took_ms: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    on_processor = machine.build().backend == "cpu"
    if not on_processor:
        # a row after a row replays a graph that was captured, one after another shape does not
        took_ms[1, 0] = [bench.tick(1, 0) for _ in range(220)][20:]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took_ms[shapes[-1]]) < LEAST:
        for shape in shapes if on_processor else shapes[1:]:
            if time.perf_counter() > end and len(took_ms[shape]) >= LEAST:
                continue
            took_ms[shape].append(bench.tick(*shape))
            row_ms = bench.tick(1, 0)
            if on_processor:
                took_ms[1, 0].append(row_ms)
    asides = ()
    if not on_processor:
        asides = tuple(
            _aside(model, bench, threads, 0, seconds / 4, piece) for piece in ASIDE_PIECES
        )
    elif threads > 1:
        asides = tuple(
            _aside(model, bench, threads, k, max(seconds / 2, ASIDE_S), ASIDE_PIECE)
            for k in range(1, threads)
            if k in (1, threads // 2, threads - 1)
        )
    return Costs({shape: summary(values) for shape, values in took_ms.items()}, asides)


def _aside(
    model: llama.Model, bench: Bench, threads: int, cores: int, seconds: float, piece: int
) -> Aside:
    """A stream's ticks beside prompts in another context; ``cores`` of its own, 0 = none."""
    other = Bench(model, cores or threads)
    done, stop = [0], threading.Event()

    def prompts() -> None:
        while not stop.is_set():
            other.tick(0, piece)
            done[0] += piece

    worker = threading.Thread(target=prompts)
    bench.context.set_threads(threads - cores)
    worker.start()
    bench.tick(1, 0)
    began, before, values = time.perf_counter(), done[0], []
    while time.perf_counter() - began < max(1.0, seconds):
        values.append(bench.tick(1, 0))
    rate = (done[0] - before) / (time.perf_counter() - began)
    stop.set()
    worker.join()
    other.context.close()
    bench.context.set_threads(threads)
    return Aside(summary(values), rate)


def to_json(costs: Costs) -> dict[str, Any]:
    return {
        "ticks": [[*shape, *tick] for shape, tick in costs.ticks.items()],
        "asides": [[*aside.tick, aside.prompt_tokens_per_s] for aside in costs.asides],
    }


def from_json(value: dict[str, Any]) -> Costs:
    return Costs(
        {(rows, n): Tick(mean, p95) for rows, n, mean, p95 in value["ticks"]},
        tuple(Aside(Tick(mean, p95), rate) for mean, p95, rate in value["asides"]),
    )


def run(path: str, threads: int, seconds: float) -> Costs:
    """`measure` in a process of its own: its memory comes back, and nothing of it stays loaded."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tick_costs", path, str(threads), str(seconds)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return from_json(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: list[str], out: Callable[[str], object] = print) -> None:
    seconds = float(arguments[2]) if len(arguments) > 2 else 6.0
    out(json.dumps(to_json(measure(arguments[0], int(arguments[1]), seconds))))


if __name__ == "__main__":
    main(sys.argv[1:])
