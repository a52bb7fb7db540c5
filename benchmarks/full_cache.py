"""Whether what is kept slows down who runs: storm and mixed load, full cache beside an empty one.

    python -m benchmarks.full_cache
    python -m benchmarks.full_cache --model demo --cells 1000 --rounds 1 --scale 0.2

Each round starts a daemon anew for either side.  The full one computes other texts until its cache
says that it keeps ``--cells`` tokens of them: it does not keep what is not worth a copy.  The empty
one computes as many, and is told to keep nothing of them (``cache_prompt`` false).  Then both keep
what the load itself computes, as usual.  Figures: the tokens kept before the load, those of
`benchmarks.storm` and `benchmarks.mixed`, and full over empty, round by round.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any, NamedTuple

import trio

from benchmarks import cache_tables, machine, mixed, storm
from benchmarks.daemon import Client
from benchmarks.machine import ratio, spread
from benchmarks.names import OURS
from benchmarks.report import around, table
from benchmarks.setting import Recorder, Series, Setting, parser, setting
from benchmarks.sides import Ours, ServerSetting, ours, quiet_death
from benchmarks.turns import say

FULL, EMPTY = "full", "empty"
FILL_WORDS = 400  # of each text that the cache is filled with
MOST_COMPUTED = 4  # times the tokens that are to be kept, until we give up
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


class Filled(NamedTuple):
    """Tokens that a daemon has computed before its load, and how many its cache keeps then."""

    computed: int
    kept: int


def fill(side: Ours, found: Setting, cells: int, computed: int | None) -> Filled:
    """Have ``cells`` tokens of other texts kept; or have at least ``computed`` computed, none kept.

    Raises RuntimeError where the cache keeps fewer however many are computed.
    """
    done = kept = 0
    with Client(side.daemon.path) as client:
        while kept < cells if computed is None else done < computed:
            if done > MOST_COMPUTED * cells:
                raise RuntimeError(
                    f"of {done} tokens computed the cache keeps {kept}, not {cells}: a larger "
                    '--flags "--cache-ram SIZE" keeps more, a smaller --cells is met sooner'
                )
            prompt, keep = found.documents.words(FILL_WORDS), computed is None
            client.send(id="fill", prompt=prompt, max_tokens=1, stream=False, cache_prompt=keep)
            event = client.receive()
            if event["event"] != "eos":
                raise RuntimeError(event)
            done += event["usage"]["prompt_tokens"]
            domains = client.call(type="cache")["cache"]["domains"]
            kept = sum(each["tokens"] for each in domains)
    return Filled(done, kept)


def load(side: Ours, found: Setting, name: str, run: int) -> Series:
    """One round of one load; figures of that one side."""
    module = {"storm": storm, "mixed": mixed}[name]
    options = module.options_parser().parse_args([])
    series = Series.empty()
    keep = Recorder(found, -1)  # no CSV: the figures are enough
    trio.run(functools.partial(module.one_side, side, found, options, run, series, keep))
    return series


def one_round(
    found: Setting, cells: int, computed: int | None, run: int
) -> tuple[Filled, dict[str, Series]]:
    """The loads on a fresh daemon whose cache is full; empty, where ``computed`` is a number."""
    sizes = ServerSetting(PARALLEL, found.n_ctx, found.threads)
    with ours(found.model, sizes, *found.options.flags.split()) as side:
        with Client(side.daemon.path) as client:
            sample = found.documents.words(300)
            found.tokens_per_word = len(client.call(type="tokenize", text=sample)["tokens"]) / 300
        filled = fill(side, found, cells, computed)
        say(f"{filled.computed} tokens computed before the load, {filled.kept} kept")
        return filled, {name: load(side, found, name, run) for name in LOADS}


def measure(found: Setting, options: argparse.Namespace) -> dict[str, Any]:
    """Full and empty in turns; the first is full, and says how many tokens the other computes."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    kept: dict[str, list[float]] = {FULL: [], EMPTY: []}
    computed = None
    for run in range(found.rounds):
        for kind in (EMPTY, FULL) if run % 2 else (FULL, EMPTY):
            say(f"round {run + 1} of {found.rounds}: {kind}")
            most = computed if kind == EMPTY else None
            filled, loads = one_round(found, options.cells, most, run)
            computed = filled.computed
            kept[kind].append(filled.kept)
            for name, series in loads.items():
                for key in LOADS[name]:
                    for value in series.values.get(key, {}).get(OURS, []):
                        values.setdefault((name, key), {}).setdefault(kind, []).append(value)
    shown: dict[str, Any] = {name: {} for name in LOADS}
    for (name, key), sides in values.items():
        full, empty = sides.get(FULL, []), sides.get(EMPTY, [])
        if full and len(full) == len(empty) and all(empty):
            shown[name][key] = {
                FULL: spread(full), EMPTY: spread(empty), "full_over_empty": ratio(full, empty)
            }  # fmt: skip
    tokens = {kind: spread(counts) for kind, counts in kept.items()}
    return {**found.describe(), "cells": options.cells, "kept": tokens, "loads": shown}


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    result = measure(found, options)
    print(table(*cache_tables.full_whole(result, around)))
    print("written to", machine.save(options.name or f"full_cache-{found.label}", result).name)


if __name__ == "__main__":
    sys.exit(main())
