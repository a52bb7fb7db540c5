"""The figures of `benchmarks.kv_types` as lines of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
Show = Callable[[float | None], str]
Around = Callable[[dict[str, float] | None], str]
Table = tuple[list[str], list[list[str]]]
HEAD = ["KV cells", "layout of V", "KV type", "tokens/s", "over the first type",
        "bytes a token, MB", "of it KV, MB", "GB/s", "perplexity"]  # fmt: skip


def command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    cells = ",".join(map(str, result["cells"]))
    words = f"--cells {cells} --types {result['types']} --packs {result['packs']}"
    words += f" --rounds {result['rounds']} --threads {result['threads']}"
    if "perplexity_tokens" in result:
        words += f" --perplexity-tokens {result['perplexity_tokens']}"
    words += f" --name {name}"
    return f"python -m benchmarks.kv_types --model {result['model'].split()[0]} {words}"


def whole(result: Result, show: Show, around: Around) -> Table:
    """A line for each type, layout and number of cells."""
    lost = {
        (row["kv_type"], row["kv_pack"]): f"{row['perplexity']:.4f}"
        for row in result.get("perplexity", ())
    }
    return HEAD, [
        [str(row["cells"]), row["kv_pack"], row["kv_type"], around(row["tokens_per_s"]),
         around(row["over_first"]), *(show(row[key]) for key in ("mb_per_token", "kv_mb", "gbps")),
         lost.get((row["kv_type"], row["kv_pack"]), "-")]
        for row in result["rows"]
    ]  # fmt: skip
