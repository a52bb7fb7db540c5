"""Options that the scheduler's benchmarks share, and the two servers that they are run against."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks import machine
from benchmarks.machine import ratio, spread
from benchmarks.models import model_path
from benchmarks.names import OURS, THEIRS
from benchmarks.sides import Ours, ServerSetting, Side, Theirs, ours, theirs
from benchmarks.timeline import Phase, Row, rows_of, write_csv
from umaserve.bench.prompts import Prompts
from umaserve.models.gguf.faults import check_gguf

LARGE = 8 << 30
"""Bytes of a model of which four copies may not fit."""

QUICK_SCALE, ACCELERATOR_SCALE = 0.5, 0.35


def parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """The shared options; ``name`` is of the benchmark."""
    out = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.set_defaults(benchmark=name, chain=False)
    out.add_argument(
        "--model", default="qwen2.5-0.5b",
        help="demo (the bundled one), a shape of tools/make_model.py, or a path",
    )  # fmt: skip
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--rounds", type=int, default=2, help="each side once a round, in turns")
    out.add_argument(
        "--scale", type=float, default=0.0,
        help="multiplies every stretch of time that is watched; 0 = 1 on a CPU, "
        f"{ACCELERATOR_SCALE} on an accelerator, {QUICK_SCALE} times that with --quick",
    )  # fmt: skip
    out.add_argument("--quick", action="store_true", help="one round, half the time")
    out.add_argument("--label", default="", help="of the result files; by backend and model if not")
    out.add_argument("--backend-lib", default="", help="whose libllama; $UMA_BACKEND if not given")
    out.add_argument("--threads", type=int, default=0, help="of both sides; 0 = as each chooses")
    out.add_argument("--n-ctx", type=int, default=0, help="KV cells of both sides; 0 = by backend")
    out.add_argument("--seed", type=int, default=1, help="of the prompts")
    out.add_argument("--flags", default="", help="more flags for our daemon, one string")
    out.add_argument("--no-plot", action="store_true")
    return out


@dataclass
class Setting:
    """What follows from the options on this machine."""

    options: argparse.Namespace
    model: str
    label: str
    accelerator: bool
    rounds: int
    scale: float
    n_ctx: int
    threads: int
    documents: Prompts
    tokens_per_word: float = 1.5

    @property
    def model_bytes(self) -> int:
        return os.path.getsize(self.model)

    @property
    def stream_tokens(self) -> int:
        """Most tokens of one endless stream; a new request follows it."""
        return min(8192, self.n_ctx // 4)

    def words(self, wanted: int) -> int:
        """At most ``wanted`` words of a prompt that fits beside the streams."""
        return max(16, min(wanted, int(0.2 * self.n_ctx / self.tokens_per_word)))

    def seconds(self, at_full: float) -> float:
        return max(0.2, at_full * self.scale)

    def describe(self) -> dict[str, Any]:
        o = self.options
        return {
            "benchmark": o.benchmark,
            "label": self.label,
            "model": f"{o.model} {o.quant}" if o.model != "demo" else "demo (bundled)",
            "accelerator": self.accelerator,
            "rounds": self.rounds,
            "scale": self.scale,
            "n_ctx": self.n_ctx,
            "threads": o.threads or "as each side chooses",
            "seed": o.seed,
        }


def setting(options: argparse.Namespace) -> Setting:
    """Find the model, the library and the sizes."""
    if options.backend_lib:
        os.environ["UMA_BACKEND"] = machine.BACKEND = options.backend_lib
    path = str(model_path(options.model, options.quant, options.chain))
    backend = machine.build().backend
    accelerator = backend != "cpu"
    scale = options.scale
    if not scale:
        scale = (ACCELERATOR_SCALE if accelerator else 1.0) * (QUICK_SCALE if options.quick else 1)
    trained = next(
        (int(v) for k, v in check_gguf(path).metadata.items() if k.endswith(".context_length")),
        8192,
    )  # fmt: skip
    name = Path(options.model).name.removesuffix(".gguf")
    return Setting(
        options, path, options.label or (name if backend == "cpu" else f"{backend}-{name}"),
        accelerator, 1 if options.quick else options.rounds, scale,
        min(options.n_ctx or (32768 if accelerator else 16384), trained), options.threads,
        Prompts(options.seed),
    )  # fmt: skip


@dataclass
class Pair:
    """Our daemon and llama-server, both running."""

    setting: Setting
    ours: Ours
    theirs: Theirs

    def in_turns(self, run: int) -> list[Side]:
        """Both, the other one first in every other round."""
        sides: list[Side] = [self.ours, self.theirs]
        return sides if run % 2 == 0 else sides[::-1]


@contextlib.contextmanager
def pair(found: Setting, parallel: int, cached: bool = False) -> Iterator[Pair]:
    """Start both sides for ``parallel`` streams at once, and learn the model's tokens per word.

    ``cached``: llama-server has its cache of prompts.
    """
    sizes = ServerSetting(parallel, found.n_ctx, found.threads)
    with contextlib.ExitStack() as stack:
        our_side = stack.enter_context(ours(found.model, sizes, *found.options.flags.split()))
        their_side = stack.enter_context(theirs(found.model, sizes, cached=cached))[0]
        sample = Prompts(random.randrange(1 << 30)).words(300)
        found.tokens_per_word = trio.run(our_side.count_tokens, sample) / 300
        # a full collection would keep this client from reading for as long as several ticks
        gc.collect()
        gc.freeze()
        yield Pair(found, our_side, their_side)


@dataclass
class Series:
    """Figures of both sides by name, a value a round."""

    values: dict[str, dict[str, list[float]]]

    @classmethod
    def empty(cls) -> Series:
        return cls({})

    def add(self, side: str, **figures: float | None) -> None:
        for name, value in figures.items():
            if value is not None and value == value:
                self.values.setdefault(name, {}).setdefault(side, []).append(float(value))

    def spreads(self) -> dict[str, dict[str, Any]]:
        return {
            name: {side: spread(values) for side, values in sides.items()}
            for name, sides in self.values.items()
        }

    def ours_over_theirs(self, name: str) -> dict[str, float] | None:
        """Round by round where both have as many, else of the medians."""
        sides = self.values.get(name, {})
        a, b = sides.get(OURS, []), sides.get(THEIRS, [])
        if not a or not b or 0 in b:
            return None
        if len(a) == len(b):
            return ratio(a, b)
        return spread([spread(a)["median"] / spread(b)["median"]])


class Recorder:
    """Rows of the last round for the CSV, and where the files of a result go."""

    def __init__(self, found: Setting, last: int) -> None:
        self._rows: list[Row] = []
        self._last = last
        self.name = f"{found.options.benchmark}-{found.label}"

    def keep(self, phase: Phase, target: str, run: int) -> None:
        if run == self._last:
            self._rows += rows_of(phase, target, run)

    def folder(self) -> Path:
        out = Path(os.environ.get("UMA_BENCH_RESULTS", machine.RESULTS))
        out.mkdir(parents=True, exist_ok=True)
        return out

    def save(self, result: dict[str, Any], plot: bool) -> Path:
        """Write NAME.json, NAME.csv.gz and, with matplotlib, NAME.png."""
        from benchmarks import plots

        count = write_csv(self.folder() / f"{self.name}.csv.gz", self._rows)
        path = machine.save(self.name, {**result, "csv_rows": count})
        if plot:
            plots.draw(result, self._rows, self.folder() / f"{self.name}.png")
        return path


def show(result: dict[str, Any]) -> None:
    """Medians of the figures of both sides."""
    for name, sides in result["figures"].items():
        medians = {side: round(value["median"], 3) for side, value in sides.items()}
        print(f"{name:28}", json.dumps(medians))
