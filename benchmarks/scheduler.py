"""The whole set of the scheduler's benchmarks on one model, and one table of what must hold.

    python -m benchmarks.scheduler --model qwen2.5-0.5b
    python -m benchmarks.scheduler --model demo --quick
    python -m benchmarks.scheduler --parts storm,mixed --scale 0.5

All but ``cap_curve`` share one daemon and one llama-server.  A part that fails says so and the
others go on; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks import agent_chain, cap_curve, mixed, must_hold, paste, storm, sweep
from benchmarks.setting import LARGE, Pair, Recorder, Setting, pair, parser, setting
from benchmarks.sides import quiet_death
from benchmarks.turns import say

PARTS = ("sweep", "storm", "agent_chain", "paste", "mixed", "cap_curve")
MODULES: dict[str, Any] = {
    "sweep": sweep, "storm": storm, "agent_chain": agent_chain, "paste": paste, "mixed": mixed,
    "cap_curve": cap_curve,
}  # fmt: skip
PARALLEL = 32  # sessions of the sweep; the others need fewer
ONE_ROUND = ("sweep", "agent_chain", "cap_curve")


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "scheduler")
    out.add_argument("--parts", default="", help=f"of {','.join(PARTS)}; all if not given (large "
                     "models: all but cap_curve, which starts a daemon for every cap)")  # fmt: skip
    out.add_argument("--prompt-words", type=int, default=300, help="of the storm's prompts")
    out.add_argument("--document-words", type=int, default=900)
    out.add_argument("--storm-priority", choices=("background", "interactive"),
                     default="background")  # fmt: skip
    return out


def part_options(name: str, options: argparse.Namespace) -> argparse.Namespace:
    """The part's own options, with ours where both have them."""
    out = MODULES[name].options_parser().parse_args([])
    for key, value in vars(options).items():
        if key != "benchmark" and hasattr(out, key):
            setattr(out, key, value)
    if name in ONE_ROUND:
        out.rounds = 1
    if options.quick and name == "cap_curve":
        out.caps = "1.2,2,off"
    return out


def part_setting(shared: Setting, name: str, options: argparse.Namespace) -> Setting:
    """The same servers and prompts, the part's own rounds."""
    return Setting(
        options, shared.model, shared.label, shared.accelerator,
        1 if options.quick else options.rounds, shared.scale, shared.n_ctx, shared.threads,
        shared.documents, shared.tokens_per_word,
    )  # fmt: skip


def run(found: Setting, options: argparse.Namespace, parts: list[str]) -> tuple[dict, list[str]]:
    """Results by part, and the parts that failed."""
    results: dict[str, Any] = {}
    failed: list[str] = []
    began = time.perf_counter()

    def attempt(name: str, call: Callable[[argparse.Namespace, Recorder], dict[str, Any]]) -> None:
        own = part_options(name, options)
        mine = part_setting(found, name, own)
        own.benchmark = name
        keep = Recorder(mine, mine.rounds - 1)
        try:
            results[name] = call(own, keep)
            keep.save(results[name], not options.no_plot)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        say(f"{name}: done, {time.perf_counter() - began:.0f} s")

    costs = None
    if "storm" in parts:
        own = part_options("storm", options)
        costs = storm.measure_costs(part_setting(found, "storm", own), own)
    with contextlib.ExitStack() as stack:
        shared = [name for name in PARTS if name in parts and name != "cap_curve"]
        if shared:
            servers = stack.enter_context(pair(found, PARALLEL))
            for name in shared:
                attempt(name, _call(name, servers, stack, costs))
    if "cap_curve" in parts:
        attempt(
            "cap_curve",
            lambda own, keep: cap_curve.measure(part_setting(found, "cap_curve", own), own, keep),
        )
    return results, failed


def _call(
    name: str, servers: Pair, stack: contextlib.ExitStack, costs: Any
) -> Callable[[argparse.Namespace, Recorder], dict[str, Any]]:
    def call(own: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
        bench = Pair(part_setting(servers.setting, name, own), servers.ours, servers.theirs)
        if name == "mixed":
            return mixed.measure(stack, bench, own, keep)
        result = MODULES[name].measure(bench, own, keep)
        if name == "storm":
            storm.add_free(result, costs)
        return result

    return call


def print_table(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"what must hold: {next(iter(results.values()))['model']}")
    for head in must_hold.HEAD:
        table.add_column(head)
    for line in must_hold.lines(results):
        table.add_row(*(cell.replace("**", "") for cell in line))
    Console(width=120).print(table)


def main() -> int:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    default = [p for p in PARTS if p != "cap_curve" or found.model_bytes <= LARGE]
    parts = options.parts.split(",") if options.parts else default
    unknown = [p for p in parts if p not in PARTS]
    if unknown:
        raise SystemExit(f"--parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    results, failed = run(found, options, parts)
    if results:
        print_table(results)
    if failed:
        print("failed:", ", ".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
