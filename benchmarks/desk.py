"""A desk: a chat, an editor, two agents and a program that summarises documents, all at once.

    python -m benchmarks.desk
    python -m benchmarks.desk --models qwen2.5-0.5b,qwen3-30b-a3b --json desk.json --svg desk.svg
    python -m benchmarks.desk --words-scale 0.33 --rounds 3 --same-agent

Our daemon and llama-server, of one build, answer the same programs over HTTP, in turns.  Nobody
names a lane; each program says its own ``User-Agent``.  Before that each program runs alone.

- The chat streams answers of 500 tokens and asks on after a pause of a second.
- The editor completes a file of 500 to 700 words every 0.4 s, at most 16 tokens; the file grows by
  two words, and a completion that still runs is given up by closing its connection.
- Each agent has 4,000 to 6,000 words, gets an answer of 64 tokens, adds a tool's result of 150 to
  450 words, and asks at once.
- The summaries are of about 1,500 words each, 120 tokens, not streamed, one after another.

Figures are medians over the rounds.  ``ten`` is the largest mean of any ten consecutive gaps.  In
``waited`` a completion that was given up counts for how long it ran.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks import desk_chart, machine
from benchmarks.names import OURS, THEIRS
from benchmarks.programs import AGENTS, PROGRAMS, by_program, run
from benchmarks.setting import Series
from benchmarks.sides import quiet_death
from benchmarks.turns import say
from benchmarks.web import Caller, Model, Server, find_model, servers, settle, warm_up

APART_S = 0.2
PARALLEL = 8
ALONE = [name for name in PROGRAMS if name != AGENTS[1]]


def add_common(out: argparse.ArgumentParser) -> None:
    """The options that `benchmarks.price` has too."""
    out.add_argument(
        "--models", default="qwen2.5-0.5b",
        help="with commas between them: shapes of tools/make_model.py, demo, or paths",
    )  # fmt: skip
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--rounds", type=int, default=2, help="each server once a round, in turns")
    out.add_argument("--words-scale", type=float, default=1.0, help="multiplies all prompts")
    out.add_argument("--seed", type=int, default=1, help="of the prompts")
    out.add_argument("--flags", default="", help="more flags for our daemon, one string")
    out.add_argument("--ablated", default="", help="mechanisms that our daemon lacks, with commas")
    out.add_argument("--n-ctx", type=int, default=0, help="KV cells; 0: by device and model")
    out.add_argument("--without-peer", action="store_true", help="without llama-server")
    out.add_argument("--json", type=Path, help="write the result to this file")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(out)
    out.add_argument("--seconds", type=float, default=18.0, help="of the desk")
    out.add_argument("--alone-seconds", type=float, default=4.0, help="of each program; 0: none")
    out.add_argument("--same-agent", action="store_true", help="all say the same User-Agent")
    out.add_argument("--svg", type=Path, help="draw the programs' latencies into this file")
    return out


def one_desk(
    server: Server, options: argparse.Namespace, programs: list[str], seed: int
) -> dict[str, dict[str, float]]:
    """Run some programs on an idle server; figures by program."""
    agent = "desk" if options.same_agent else ""
    caller = Caller(server, seed, options.words_scale, agent)
    seconds = options.seconds if len(programs) > 1 else options.alone_seconds
    phase = trio.run(functools.partial(run, caller, programs, seconds, APART_S))
    trio.run(settle, server)
    return by_program(phase)


def measure(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """All programs alone and at the desk, on both servers."""
    alone, desk = Series.empty(), Series.empty()
    with servers(model, PARALLEL, options) as found:
        for server in found:
            warm_up(server, options.seed)
        for i, name in enumerate(ALONE if options.alone_seconds else []):
            say(f"{model.name}: {name} alone")
            for server in found:
                seed = options.seed * 1000 + 900 + i
                for program, values in one_desk(server, options, [name], seed).items():
                    add(alone, server.name, program, values)
        for turn in range(options.rounds):
            say(f"{model.name}: desk, round {turn + 1} of {options.rounds}")
            for server in found if turn % 2 == 0 else found[::-1]:
                seed = options.seed * 1000 + turn
                for program, values in one_desk(server, options, list(PROGRAMS), seed).items():
                    add(desk, server.name, program, values)
    return {
        "model": f"{model.name} {options.quant}",
        "n_ctx": model.n_ctx,
        "alone": alone.spreads(),
        "figures": desk.spreads(),
        "ratios": ratios(desk),
        "rounds": desk.values,
    }


def add(series: Series, server: str, program: str, values: dict[str, float]) -> None:
    series.add(server, **{f"{program}.{name}": value for name, value in values.items()})


def ratios(series: Series) -> dict[str, float]:
    """Ours over llama-server's, medians; of figures that both have."""
    found = {name: series.ours_over_theirs(name) for name in series.values}
    return {name: ratio["median"] for name, ratio in found.items() if ratio is not None}


def shown(figures: dict[str, Any], name: str, side: str) -> str:
    spread = figures.get(name, {}).get(side)
    return f"{spread['median']:.4g}" if spread else "-"


def show(result: dict[str, Any]) -> None:
    """Print a line for each figure: alone, at the desk, and ours over llama-server's."""
    alone, desk = result["alone"], result["figures"]
    print(f"\n{result['model']}, {result['n_ctx']} cells")
    print(f"{'':22}{'alone ours':>11}{'theirs':>9}{'desk ours':>12}{'theirs':>9}{'ratio':>8}")
    for name in desk:
        cells = [shown(f, name, s) for f in (alone, desk) for s in (OURS, THEIRS)]
        ratio = result["ratios"].get(name)
        last = "-" if ratio is None else f"{ratio:.2f}"
        print(f"{name:22}{cells[0]:>11}{cells[1]:>9}{cells[2]:>12}{cells[3]:>9}{last:>8}")


def save(path: Path | None, options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Write the results with the machine and the options that made them."""
    if path is not None:
        told = {k: v for k, v in vars(options).items() if not isinstance(v, Path)}
        whole = {"machine": machine.describe(), "options": told, "models": results}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def measure_all(
    options: argparse.Namespace,
    measure: Callable[[Model, argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Measure, show and save each of the models; returns the results."""
    results: list[dict[str, Any]] = []
    for name in options.models.split(","):
        began = time.perf_counter()
        results.append(measure(find_model(name, options.quant, options.n_ctx), options))
        show(results[-1])
        save(options.json, options, results)
        say(f"{name}: {time.perf_counter() - began:.0f} s")
    return results


def main() -> None:
    quiet_death()
    options = parser().parse_args()
    results = measure_all(options, measure, show)
    if options.svg is not None:
        desk_chart.draw(results, options.svg)


if __name__ == "__main__":
    main()
