"""The figures of ``benchmarks.http_cost`` and ``benchmarks.http_memory`` as lines of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
Show = Callable[[float | None], str]
Around = Callable[[dict[str, float] | None], str]
Table = tuple[list[str], list[list[str]]]

HTTP, SOCKET = "HTTP", "socket"


def cost_command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    words = ["python -m benchmarks.http_cost"]
    rates = result.get("rates")
    if rates:
        model = rates["model"].split()[0]
        words.append(f"--model {model} --streams {rates['streams']} --tokens {rates['tokens']}")
        words.append(f"--threads {rates['threads']}")
    else:
        words.append("--rounds 0 --no-peer")
    model = result.get("first_token", {}).get("model")
    if model:
        words.append(f"--first-model {model} --first-tokens {result['first_token']['count']}")
    return " ".join([*words, f"--route {result['route']} --name {name}"])


def memory_command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    return f"python -m benchmarks.http_memory --requests {result['requests']} --name {name}"


def cost(result: Result, around: Around) -> Table:
    """Everything that was measured, with its spread."""
    rows, rates = [], result.get("rates")
    if rates:
        for name, value in rates["tokens_per_s"].items():
            rows.append([f"tokens/s: {name}", around(value), around(rates["http_over"].get(name))])
        for name, value in rates["cpu_s_per_1k"].items():
            rows.append([f"CPU s for 1000 tokens: {name}", around(value), "-"])
    for name, value in result.get("first_token", {}).get("ms", {}).items():
        more = result["first_token"]["more_ms"].get(name)
        title = f"first token of {_engine(result['first_token'])}, ms: {name}"
        rows.append([title, around(value), around(more)])
    return ["", "measured", "HTTP over this one, or ms more than the socket"], rows


def _engine(first: Result) -> str:
    return first.get("model") or "a scripted engine"


def memory(result: Result, show: Show) -> Table:
    """MiB at each look."""
    names = list(result["grew_mib"])
    rows = [
        [str(look["requests"]), *(show(look[name]) for name in names)] for look in result["looks"]
    ]
    return ["requests", *(f"{name}, MiB" for name in names)], rows


