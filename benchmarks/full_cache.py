"""Whether what is kept slows down who runs: storm and mixed load, full cache beside an empty one.

    python -m benchmarks.full_cache
    python -m benchmarks.full_cache --model demo --cells 1000 --rounds 1 --scale 0.2

Each round starts a daemon anew for either side.  Both compute as many tokens of other texts before
the load; one keeps them, the other is told to keep nothing of them (``cache_prompt`` false).  Then
both keep what the load itself computes, as usual.  Figures: those of `benchmarks.storm` and
`benchmarks.mixed`, and full over empty, round by round.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import trio

from benchmarks import cache_tables, machine, mixed, storm
from benchmarks.daemon import Client
from benchmarks.machine import ratio, spread
from benchmarks.names import OURS
from benchmarks.report import number, table
from benchmarks.setting import Recorder, Series, Setting, parser, setting
from benchmarks.sides import Ours, ServerSetting, ours, quiet_death
from benchmarks.turns import say

FULL, EMPTY = "full", "empty"
FILL_WORDS = 400  # of each text that the cache is filled with
PARALLEL = 9  # the most clients of the loads, and a stream
LOADS = {
    "storm": ("alone_p95_ms", "p95_ms@2", "longest_ms@2", "prompt_rate@2", "p95_ms@8",
              "longest_ms@8", "prompt_rate@8"),
    "mixed": ("three_p95_ms", "mixed_p95_ms", "longest_ms", "mixed_tokens_per_s",
              "first_alone_ms", "first_meeting_ms"),
}  # fmt: skip


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "full_cache")
    out.add_argument("--cells", type=int, default=10_000, help="tokens kept of other texts")
    out.add_argument("--name", default="", help="of the result file; by label if not given")
    return out


def fill(side: Ours, found: Setting, cells: int, keep: bool) -> int:
    """Compute at least so many tokens of prompts; how many they were.

    Raises RuntimeError where they should have been kept, and the first is not.
    """
    texts, done = [], 0
    with Client(side.daemon.path) as client:

        def ask(prompt: str) -> dict[str, int]:
            client.send(id="fill", prompt=prompt, max_tokens=1, stream=False, cache_prompt=keep)
            event = client.receive()
            if event["event"] != "eos":
                raise RuntimeError(event)
            return event["usage"]

        while done < cells:
            texts.append(found.documents.words(FILL_WORDS))
            done += ask(texts[-1])["prompt_tokens"]
        if keep and not ask(texts[0])["cached_tokens"]:
            raise RuntimeError(f"{done} tokens are more than the cache keeps")
    return done


def load(side: Ours, found: Setting, name: str, run: int) -> Series:
    """One round of one load; figures of that one side."""
    module = {"storm": storm, "mixed": mixed}[name]
    options = module.options_parser().parse_args([])
    series = Series.empty()
    keep = Recorder(found, -1)  # no CSV: the figures are enough
    trio.run(functools.partial(module.one_side, side, found, options, run, series, keep))
    return series


def one_round(found: Setting, cells: int, kind: str, run: int) -> dict[str, Series]:
    """The loads on a fresh daemon whose cache is full or empty."""
    sizes = ServerSetting(PARALLEL, found.n_ctx, found.threads)
    with ours(found.model, sizes, *found.options.flags.split()) as side:
        with Client(side.daemon.path) as client:
            sample = found.documents.words(300)
            found.tokens_per_word = len(client.call(type="tokenize", text=sample)["tokens"]) / 300
        say(f"{kind}: {fill(side, found, cells, kind == FULL)} tokens computed before the load")
        return {name: load(side, found, name, run) for name in LOADS}


def measure(found: Setting, options: argparse.Namespace) -> dict[str, Any]:
    """Full and empty in turns."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in range(found.rounds):
        for kind in (FULL, EMPTY) if run % 2 else (EMPTY, FULL):
            say(f"round {run + 1} of {found.rounds}: {kind}")
            for name, series in one_round(found, options.cells, kind, run).items():
                for key in LOADS[name]:
                    for value in series.values.get(key, {}).get(OURS, []):
                        values.setdefault((name, key), {}).setdefault(kind, []).append(value)
    loads: dict[str, Any] = {name: {} for name in LOADS}
    for (name, key), sides in values.items():
        full, empty = sides.get(FULL, []), sides.get(EMPTY, [])
        if full and len(full) == len(empty) and all(empty):
            loads[name][key] = {
                FULL: spread(full), EMPTY: spread(empty), "full_over_empty": ratio(full, empty)
            }  # fmt: skip
    return {**found.describe(), "cells": options.cells, "loads": loads}


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    result = measure(found, options)
    head, rows = cache_tables.full_page({f"full_cache-{found.label}": result}, number)
    print(table(head, rows))
    print("written to", machine.save(options.name or f"full_cache-{found.label}", result).name)


if __name__ == "__main__":
    sys.exit(main())
