"""Benchmark B: one stream deep in its context, by KV type and by layout of V.

    python -m benchmarks.kv_types
    python -m benchmarks.kv_types --model demo --cells 512,1024 --ticks 4 --rounds 1
    UMA_BACKEND=cuda python -m benchmarks.kv_types --model qwen3-30b-a3b --rounds 3

Ticks of the bare library: one row decodes with so many cells in use.  Tokens a second stand beside
the bytes that ΣBMT estimates for such a tick.  A context is filled with copies of a few hundred
cells: what it costs to read cells does not depend on what is in them.  V that lies head by head
(``--kv-pack head-major``) is f16 always, so there only K has another type.  Contexts take turns.
What a type costs in answers is the perplexity of the bundled model (`benchmarks.kv_perplexity`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, plots
from benchmarks.kv_perplexity import HEAD_MAJOR, TOKEN_MAJOR, Kind, perplexities
from benchmarks.kv_tables import whole
from benchmarks.machine import build, spread
from benchmarks.models import model_path
from benchmarks.report import around, number
from benchmarks.turns import say
from umaserve import llama
from umaserve.engine.cells.piece import Piece, export_piece, import_piece, ordinary
from umaserve.engine.native.batch import Batch
from umaserve.llama.traffic import Traffic
from umaserve.models.gguf.faults import check_gguf
from umaserve.policy.bytes import bandwidth
from umaserve.system.processor import logical_cores

MOST_WORDS = 8  # in front of the head of what libllama saves
BLOCK = 256  # cells that are computed once, and copied
SPARE, SEQUENCES = 1, 2
COLUMNS = ("kv_type", "kv_pack", "cells", "round", "ms", "perplexity")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument(
        "--model", default="qwen2.5-0.5b", help="demo, a shape of make_model.py, or a path"
    )
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--cells", default="4096,8192,16384,32768", help="in use, by measurement")
    out.add_argument("--types", default="f16,q8,q6,q4", help="as --kv-type takes them")
    out.add_argument("--packs", default=f"{TOKEN_MAJOR},{HEAD_MAJOR}")
    out.add_argument("--ticks", type=int, default=12, help="of each context in a round")
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--threads", type=int, default=logical_cores())
    out.add_argument(
        "--perplexity-tokens", type=int, default=8192, help="of the bundled model; 0 = none"
    )
    out.add_argument("--name", default="", help="of the result files; by model if not given")
    return out


@dataclass
class Deep:
    """A context with one sequence, whose cells are copies of its first ones."""

    kind: Kind
    context: llama.Context
    traffic: Traffic
    batch: Batch

    @classmethod
    def open(cls, model: llama.Model, kind: Kind, cells: int, threads: int) -> Deep:
        """With room for ``cells``, of which a block is computed."""
        context = kind.context(
            model, cells + 2 * BLOCK, n_batch=BLOCK, n_ubatch=BLOCK, n_seq_max=SEQUENCES,
            n_threads=threads,
        )  # fmt: skip
        traffic = Traffic.of(check_gguf(model.path), type_k=kind.type_k, type_v=kind.type_v)
        deep = cls(kind, context, traffic, Batch(model.library.ffi, BLOCK, 1))
        deep.decode(0, BLOCK)
        return deep

    def decode(self, at: int, count: int) -> float:
        """Seconds of one ``llama_decode`` of ``count`` tokens; the last one has logits."""
        arrays, model = self.batch.arrays, self.context.model
        arrays.token[:count] = 1 + 7919 * np.arange(at, at + count) % (model.n_vocab - 1)
        arrays.pos[:count] = np.arange(at, at + count)
        arrays.seq[:count] = 0
        arrays.logits[:count] = 0
        arrays.logits[count - 1] = 1
        arrays.n_tokens[0] = count
        began = time.perf_counter()
        status = model.library.lib.llama_decode(self.context.pointer, self.batch.struct[0])
        self.context.synchronize()
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return time.perf_counter() - began

    def fill(self, cells: int) -> None:
        """Copy the first block behind itself until so many cells are in use."""
        data, size = export_piece(self.context, 0, SPARE, 0, BLOCK, None, ordinary)
        positions = positions_within(data[:size], BLOCK)
        first = positions.copy()
        held = self.context.seq_pos_max(0) + 1
        while held < cells:
            positions[:] = first + held
            piece = Piece(0, 0, 0, held, held + BLOCK, data, size)
            if not import_piece(self.context, 0, SPARE, piece, min(held + BLOCK, cells)):
                raise RuntimeError(f"no room for {cells} cells")
            held = self.context.seq_pos_max(0) + 1

    def tick_ms(self, cells: int, ticks: int) -> list[float]:
        """Of so many decodes of one token, each with ``cells`` in use and its own."""
        out = []
        for turn in range(-1, ticks):
            seconds = self.decode(cells, 1)
            self.context.seq_rm(0, cells, -1)
            if turn >= 0:
                out.append(1e3 * seconds)
        return out

    def bytes_per_token(self, cells: int, on_processor: bool) -> float:
        """ΣBMT's estimate for such a tick."""
        span = bandwidth.attention_span(cells + 1, self.context.n_ctx)
        read = cells + 1 if on_processor else span
        return float(bandwidth.tick_bytes(self.traffic, 1, 1, read, 1, span))


def positions_within(data: np.ndarray, n: int) -> np.ndarray:
    """A view of the positions in what libllama saved of ``n`` cells (uint8): int32[n].

    Raises ValueError where the head of what it saved is not found.
    """
    for begin in range(0, 4 * MOST_WORDS, 4):
        head = data[begin : begin + 4 * (2 + 3 * n)].view(np.int32)
        if head.size == 2 + 3 * n and head[0] == 1 and head[1] == n and (head[3::3] == 1).all():
            return head[2::3]
    raise ValueError("what libllama saved has no head that is known")


@contextlib.contextmanager
def contexts(
    options: argparse.Namespace, library: llama.Library, kinds: list[Kind], most: int
) -> Iterator[list[Deep]]:
    """One for each kind."""
    path = model_path(options.model, options.quant)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(llama.Model.open(library, path, n_gpu_layers=-1))
        out = []
        for kind in kinds:
            out.append(Deep.open(model, kind, most, options.threads))
            stack.callback(out[-1].context.close)
        yield out


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[tuple]]:
    """The result, and the lines of its CSV."""
    depths = sorted(int(n) for n in options.cells.split(","))
    packs, types = options.packs.split(","), options.types.split(",")
    kinds = [Kind.of(kv_type, pack) for pack in packs for kv_type in types]
    library = llama.load(machine.BACKEND)
    tokens, rows, table = options.perplexity_tokens, [], []
    lost = perplexities(library, kinds, tokens, options.threads) if tokens else []
    shown = [each["perplexity"] for each in lost] or [""] * len(kinds)
    with contexts(options, library, kinds, depths[-1]) as all_deep:
        for cells in depths:
            say(f"kv types: {cells} cells")
            ms: list[list[float]] = [[] for _ in all_deep]
            for deep in all_deep:
                deep.fill(cells)
            for turn in range(options.rounds):
                for deep, found, value in zip(all_deep, ms, shown, strict=True):
                    found.append(statistics.median(deep.tick_ms(cells, options.ticks)))
                    table.append((*deep.kind[:2], cells, turn, found[-1], value))
            for deep, found in zip(all_deep, ms, strict=True):
                rows.append(row(deep, cells, found, ms[0]))
    result = {
        "benchmark": "kv_types", "model": f"{options.model} {options.quant}",
        "threads": options.threads, "rounds": options.rounds, "ticks": options.ticks,
        "cells": depths, "types": options.types, "packs": options.packs, "rows": rows,
        "perplexity_tokens": tokens, "perplexity": lost,
    }  # fmt: skip
    return result, table


def row(deep: Deep, cells: int, ms: list[float], first_ms: list[float]) -> dict[str, Any]:
    """Of the result: ``ms`` a round, and those of the first kind."""
    moved = deep.bytes_per_token(cells, build().backend == "cpu")
    return {
        "kv_type": deep.kind.kv_type,
        "kv_pack": deep.kind.kv_pack,
        "cells": cells,
        "tokens_per_s": spread([1e3 / each for each in ms]),
        "over_first": machine.ratio(first_ms, ms),
        "mb_per_token": moved / 1e6,
        "kv_mb": cells * deep.traffic.kv_cell / 1e6,
        "gbps": moved / statistics.median(ms) / 1e6,
    }


def write_csv(path: Path, table: list[tuple]) -> None:
    """Compressed, as the other results are."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(table)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    options = parser().parse_args()
    result, table = measure(options)
    shown = Path(options.model).name.removesuffix(".gguf")
    label = shown if build().backend == "cpu" else f"{build().backend}-{shown}"
    name = options.name or f"kv_types-{label}"
    for line in whole(result, number, around)[1]:
        print("  ".join(f"{cell:>12}" for cell in line))
    path = machine.save(name, result)
    write_csv(path.with_name(f"{name}.csv.gz"), table)
    plots.draw(result, [], path.with_name(f"{name}.png"))
    print("written to", path.name, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    sys.exit(main())
