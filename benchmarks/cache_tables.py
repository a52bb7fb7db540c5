"""The figures of `benchmarks.cache`, `full_cache` and `working_set` as lines of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.names import OURS, THEIRS

Result = dict[str, Any]
Around = Callable[[dict[str, float] | None], str]
Table = tuple[list[str], list[list[str]]]
HEAD = ["trace", "step", "first token or whole", THEIRS, "ratio", "cached share",
        THEIRS, "computed beyond the new", THEIRS]  # fmt: skip
FULL_HEAD = ["load", "figure", "full", "empty", "ratio"]
WORKING_HEAD = ["sessions", "of turns", "KV cells", "tokens/s at once", "in batches",
                "ratio", "parked at once", "in batches"]  # fmt: skip


def command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    sizes, model = result["sizes"], result["model"].split()[0]
    words = f"--agents {sizes['agents']} --words {sizes['words']} --turns {sizes['turns']}"
    more = " --http" if result["http"] else ""
    if len(result["traces"]) < 4:
        more += f" --traces {','.join(result['traces'])}"
    rounds = f"--rounds {result['rounds']}"
    return f"python -m benchmarks.cache --model {model} {words} {rounds}{more} --name {name}"


def full_command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    more = f" --scale {result['scale']:g}" if result["scale"] != 1 else ""
    more += f" --threads {result['threads']}" if isinstance(result["threads"], int) else ""
    words = f"--cells {result['cells']} --rounds {result['rounds']}{more} --name {name}"
    return f"python -m benchmarks.full_cache --model {result['model'].split()[0]} {words}"


def working_command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    sizes = " ".join(f"--{key} {result[key]}" for key in ("sessions", "turns", "prompt", "answer"))
    words = f"{sizes} --rounds {result['rounds']} --name {name}"
    return f"python -m benchmarks.working_set --model {result['model'].split()[0]} {words}"


def whole(result: Result, around: Around) -> Table:
    """A line for each trace as a whole, and one for each of its steps."""
    rows = []
    for trace, found in result["traces"].items():
        for key, step in _timed(found["figures"]):
            row = [trace, f"{step}, ms" if step else "whole, s"]
            row += [*_sides(found, key, around), around(found["ours_over_theirs"].get(key))]
            row += _sides(found, f"cached@{step}", around) + _sides(found, f"beyond@{step}", around)
            rows.append(row)
    return HEAD, rows


def _timed(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys of times, and of which step they are: none for the whole trace."""
    firsts = [key for key in figures if key.startswith("first_ms@")]
    return [("makespan_s", ""), *((key, key.partition("@")[2]) for key in firsts)]


def _sides(found: Result, key: str, around: Around) -> list[str]:
    figures = found["figures"].get(key, {})
    return [around(figures.get(side)) for side in (OURS, THEIRS)]


def full_whole(result: Result, around: Around) -> Table:
    """A line for the tokens that are kept, and for each figure of each load."""
    kept = [around(result["kept"][side]) for side in ("full", "empty")]
    return FULL_HEAD, [["before them", "tokens kept", *kept, "-"]] + [
        [load, figure, around(found["full"]), around(found["empty"]),
         around(found["full_over_empty"])]
        for load, figures in result["loads"].items()
        for figure, found in figures.items()
    ]  # fmt: skip


def working_whole(result: Result, around: Around) -> Table:
    """A line of one result."""
    at_once, in_batches = result["ways"].values()
    turns = f"{result['turns']} x ({result['prompt']} + {result['answer']})"
    return WORKING_HEAD, [[
        str(result["sessions"]), turns, str(result["n_ctx"]),
        around(at_once["tokens_per_s"]), around(in_batches["tokens_per_s"]),
        around(result["at_once_over_in_batches"]),
        around(at_once["parked"]), around(in_batches["parked"]),
    ]]  # fmt: skip
