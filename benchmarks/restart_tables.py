"""The figures of `benchmarks.restart` as lines of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
Around = Callable[[dict[str, float]], str]
Table = tuple[list[str], list[list[str]]]
HEAD = ["tokens", "first token of a new daemon, ms", "after a restart, ms", "ratio",
        "tokens known", "on disk, MB"]  # fmt: skip
_KEYS = ("cold_ms", "restart_ms", "ratio", "cached", "disk_mb")


def command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    words = f"--tokens {result['tokens']} --rounds {result['rounds']}"
    words += f' --flags "{result["flags"]}"' if result["flags"] else ""
    model = result["model"].split()[0]
    return f"python -m benchmarks.restart --model {model} {words} --name {name}"


def whole(result: Result, around: Around) -> Table:
    """A line of one result."""
    return HEAD, [[str(result["tokens"]), *(around(result[key]) for key in _KEYS)]]
