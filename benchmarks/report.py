"""Tables of ``docs/BENCHMARKS.md`` from ``benchmarks/results``: ``python -m benchmarks.report``.

``benchmarks/results/TABLES.md`` gets each result as a whole; ``--tables`` writes this file alone.
The page has promises and limits alone.  What stands between ``<!-- figures: NAME -->`` and
``<!-- end -->`` is written anew; the rest of the page is left alone.  ``--check`` writes nothing
and fails where the page and the results differ.
"""

# Long: one short function for each table of the report.

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    cache_tables,
    draft_tables,
    http_tables,
    kv_tables,
    restart_tables,
    scheduler_tables,
)
from benchmarks.machine import RESULTS
from benchmarks.targets import targets_table

_DOCS = RESULTS.parent.parent / "docs"
PAGE = _DOCS / "BENCHMARKS.md"
_BLOCK = re.compile(r"(<!-- figures: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with about ``digits`` significant digits, never in powers of ten."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def around(spread: dict[str, float] | None) -> str:
    """Median, and in brackets the 10th to the 90th percentile."""
    if spread is None:
        return "-"
    middle, low, high = (number(spread[key]) for key in ("median", "p10", "p90"))
    return f"{middle} ({low} to {high})" if spread["n"] > 1 else middle


def machine_line(result: Result) -> str:
    m = result["machine"]
    where = f"{m['accelerator']}, {m['cpu']}" if m.get("accelerator") else m["cpu"]
    commit = f", umaserve {m['commit']}" if m.get("commit") else ""
    return (
        f"Measured {m['date']} on {where}, {m['cores']} cores, {m['system']}; {m['backend']} "
        f"backend, llama.cpp {m['llama']}, Python {m['python']}, numba {m['numba']}{commit}.\n"
    )


def _command(line: str) -> str:
    return f"`{line}`\n\n"


def sampler(result: Result) -> str:
    out = _command("python -m benchmarks.sampler")
    for n_vocab in sorted({row["n_vocab"] for row in result["rows"]}, reverse=True):
        rows = []
        for row in (r for r in result["rows"] if r["n_vocab"] == n_vocab):
            us = row["us"]
            rows.append(
                [
                    row["setting"],
                    around(us["ours"]),
                    around(row["ours_over_numpy"]),
                    around(us.get("llama.cpp")),
                    around(row.get("llama.cpp over ours")),
                    around(row.get("llama.cpp, array given over ours")),
                ]
            )
        out += f"{n_vocab:,} tokens:\n\n" + table(
            ["setting", "ours, us", "x `numpy.max`", "llama.cpp, us", "llama.cpp / ours",
             "the same without building its array"],
            rows,
        ) + "\n"  # fmt: skip
    return out + machine_line(result)


def tick(result: Result, name: str = "tick") -> str:
    model = result["model"].split()[0]
    options = "" if name == "tick" else f" --model {model} --name {name}"
    rows = [
        [
            str(row["sessions"]),
            around(row["decode_ms"]),
            around(row["overhead_us"]),
            around(row["sampling_us"]),
            f"{row['share']['median']:.1%}",
            f"{row['share_of_total']:.1%}",
        ]
        for row in result["rows"]
    ]
    head = ["sessions", "in `llama_decode`, ms", "outside, us", "of it sampling, us",
            "share of the tick", "share of all the time"]  # fmt: skip
    copied = (
        f"Logits copied by our code: {number(result['copied_bytes_per_token'])} bytes a token.\n"
    )
    return (
        _command(f"python -m benchmarks.tick{options}")
        + f"{result['model']}, {result['threads']} threads:\n\n"
        + table(head, rows) + "\n" + copied + machine_line(result)
    )  # fmt: skip


def throughput(result: Result, name: str) -> str:
    model = result["model"].split()[0]
    names = list(result["rows"][0]["tokens_per_s"])
    counts = ",".join(str(row["streams"]) for row in result["rows"])
    command = f"python -m benchmarks.throughput --model {model} --streams {counts}"
    command += f" --tokens {result['tokens']} --threads {result['threads']}"
    command += " --backend-sampling" if len(names) > 3 else ""
    command += " --one-at-a-time" if result["turns"] != "interleaved" else ""
    rows, ratios = [], []
    for row in result["rows"]:
        n = str(row["streams"])
        rows.append([n, *(around(row["tokens_per_s"][name]) for name in names)])
        ratios.append([n, *(around(row["ours_over"][name]) for name in names[1:])])
    cpu = [
        [str(row["streams"]), *(around(row["cpu_s_per_1k"].get(name)) for name in names[:-1])]
        for row in result["rows"]
    ]
    return (
        _command(command + f" --name {name}")
        + f"{result['model']}; {result['prompt_tokens']} prompt tokens and {result['tokens']} "
        f"generated a stream, {result['threads']} threads, sides {result['turns']}.\n"
        + "Tokens a second:\n\n" + table(["streams", *names], rows)
        + "\nOurs over each:\n\n" + table(["streams", *names[1:]], ratios)
        + "\nCPU seconds for 1000 tokens, all processes of a side:\n\n"
        + table(["streams", *names[:-1]], cpu) + "\n" + machine_line(result)
    )  # fmt: skip


def busy_front(result: Result, name: str = "busy_front") -> str:
    row = [around(result["tick_p95_ms"]["quiet"]), around(result["tick_p95_ms"]["busy"]),
           around(result["p95_ratio"]), str(result["garbage_refused"])]  # fmt: skip
    command = f"python -m benchmarks.busy_front --model {result['model']}"
    command += f" --threads {result['threads']} --name {name}"
    head = ["tick p95 quiet, ms", "busy, ms", "ratio", "messages refused"]
    return (
        _command(command)
        + f"{result['connections']} connections, {result['threads']} threads:\n\n"
        + table(head, [row]) + "\n" + machine_line(result)
    )  # fmt: skip


def hostile(result: Result, name: str = "hostile") -> str:
    figures = result["figures"]
    command = f"python -m benchmarks.hostile --model {result['model']}"
    command += f" --seconds {result['seconds']:g} --rounds {figures['polite']['p95_ms']['n']}"
    names = ("p95_ms", "longest_ms", "ttft_p95_ms", "refused", "tokens_lost")
    rows = [[side, *(around(runs[one]) for one in names)] for side, runs in figures.items()]
    ratios = (result[f"hostile_over_polite_{one}"] for one in names[:3])
    rows.append(["hostile over polite", *map(around, ratios), "", ""])
    head = ["beside", "p95 between tokens, ms", "longest pause, ms", "first token p95, ms",
            "answers refused", "tokens lost"]  # fmt: skip
    return (
        _command(command + f" --name {name}")
        + f"{result['parallel']} sequences, {result['polite_streams']} streams of the program "
        + "that behaves:\n\n" + table(head, rows) + "\n" + machine_line(result)
    )  # fmt: skip


def one_stream(result: Result, name: str = "one_stream") -> str:
    def row(title: str, key: str, ratio: str | None) -> list[str]:
        sides = [result[key]["umaserve"], result[key]["llama-server"]]
        shown = [around(s) if isinstance(s, dict) else number(s) for s in sides]
        return [title, *shown, around(result[ratio]) if ratio else "-"]

    rows = [
        row("time to first token, ms", "first_token_ms", "first_token_ratio"),
        row("tokens/s", "tokens_per_s", "tokens_per_s_ratio"),
        row("CPU seconds for 1000 tokens", "cpu_s_per_1k_tokens", "cpu_ratio"),
        row("bytes on the wire a token", "wire_bytes_per_token", None),
        row("system calls a token (strace, one library thread)", "system_calls_per_token", None),
    ]
    model = result["model"].split()[0]
    options = "" if name == "one_stream" else f" --model {model} --name {name}"
    return (
        _command(f"python -m benchmarks.one_stream{options}")
        + f"{result['model']}, {result['threads']} threads:\n\n"
        + table(["", "umaserve, Unix socket", "llama-server, HTTP", "ratio"], rows)
        + f"\nLogits copied by our code: {number(result['copied_bytes_per_token'])} bytes a "
        "token.\n" + machine_line(result)
    )  # fmt: skip


def first_token(result: Result) -> str:
    row = [around(result["daemon_ms"]), around(result["library_ms"]), around(result["ratio"])]
    head = ["daemon, ms", "bare library, ms", "ratio"]
    return (
        _command("python -m benchmarks.first_token")
        + table(head, [row]) + "\n" + machine_line(result)
    )  # fmt: skip


def startup(result: Result) -> str:
    rows = [[name, around(value)] for name, value in result["ready_s"].items()]
    if "first_start_s" in result:
        rows.append(["umaserve, nothing compiled yet", number(result["first_start_s"])])
    return (
        _command("python -m benchmarks.startup")
        + table(["", "seconds to ready"], rows) + "\n" + machine_line(result)
    )  # fmt: skip


def invariance(result: Result) -> str:
    titles = {
        "alone_twice": "alone, run again",
        "with_seven_others": "with seven other streams",
        "killed": f"alone, its engine killed {result['kills']} times",
    }
    rows = []
    for key, title in titles.items():
        found = result[key]
        parted = ", ".join(map(str, found["parted_after_tokens"])) or "-"
        rows.append([title, f"{found['equal']} of {found['streams']}", parted])
    return (
        _command("python -m benchmarks.invariance")
        + f"{result['tokens']} greedy tokens of the bundled model, {result['threads']} threads:\n\n"
        + table(["", "equal to the end", "the others part after (tokens)"], rows)
        + "\n" + machine_line(result)
    )  # fmt: skip


def recovery(result: Result) -> str:
    row = [around(result["pause_ms"]), around(result["engine_start_ms"]),
           number(result["ratio_of_medians"])]  # fmt: skip
    return (
        _command("python -m benchmarks.recovery")
        + table(["pause of a stream, ms", "engine start, ms", "ratio of medians"], [row])
        + "\n" + machine_line(result)
    )  # fmt: skip


def http_memory(result: Result, name: str) -> str:
    return (
        _command(http_tables.memory_command(name, result))
        + f"{result['requests_per_s']:.0f} requests a second.\n\n"
        + table(*http_tables.memory(result, number)) + "\n" + machine_line(result)
    )  # fmt: skip


NAMED = ("tick", "throughput", "one_stream", "busy_front", "hostile", "http_memory")
"""Kinds whose writers take the name of the result too."""
WRITERS: dict[str, Callable[..., str]] = {
    "sampler": sampler, "tick": tick, "throughput": throughput, "one_stream": one_stream,
    "first_token": first_token, "startup": startup, "invariance": invariance,
    "recovery": recovery,
    "busy_front": busy_front,
    "hostile": hostile,
    "http_memory": http_memory,
}  # fmt: skip
TABLES: dict[str, tuple[Callable[..., str], Callable[..., Any]]] = {
    "http_cost": (http_tables.cost_command, http_tables.cost),
    "cache": (cache_tables.command, cache_tables.whole),
    "full_cache": (cache_tables.full_command, cache_tables.full_whole),
    "working_set": (cache_tables.working_command, cache_tables.working_whole),
    "drafts": (draft_tables.command, draft_tables.whole),
    "kv_types": (kv_tables.command, lambda result, show: kv_tables.whole(result, number, show)),
    "restart": (restart_tables.command, restart_tables.whole),
}
"""Kinds that are a command and a table: what writes both."""


GROUPS = (*scheduler_tables.KINDS, "bmt")
"""Kinds of which all models, or all lengths, share a block."""


def bmt(results: dict[str, Result]) -> str:
    """Ticks of the bare library against the KV cells that each stream holds."""
    found = sorted(scheduler_tables.of_kind("bmt", results), key=lambda r: r["depth"])
    if not found:
        return "Not measured yet.\n"
    out, rows = "", []
    for result in found:
        model, quant = result["model"].split()
        ticks = [tick for tick in result["ticks"] if not tick["prompt"]]
        counts = ",".join(str(tick["rows"]) for tick in ticks)
        depth = result["depth"]
        out += (
            f"`python -m benchmarks.bmt --model {model} --quant {quant} --rows {counts} "
            f'--prompts "" --depth {depth} --name bmt-{depth}`. {machine_line(result)}\n'
        )
        for tick in ticks:
            first = next(t for t in found[0]["ticks"] if t["rows"] == tick["rows"])
            cells = [tick["ms"], tick["ms"] / first["ms"], tick["estimate_mb"], tick["kv_mb"]]
            rows.append([model, str(depth), str(tick["rows"]), *map(number, cells)])
    head = ["model", "KV cells a stream", "streams", "tick, ms", "over the shortest",
            "bytes, MB", "of it KV, MB"]  # fmt: skip
    return out + table(head, rows)


def scheduler_block(kind: str, results: dict[str, Result]) -> str:
    """All models of one of the scheduler's benchmarks in one table."""
    found = scheduler_tables.of_kind(kind, results)
    if not found:
        return "Not measured yet.\n"
    out = "".join(
        f"`python -m benchmarks.{kind} --model {r['model'].split()[0]} --label {r['label']}`, "
        f"{r['rounds']} rounds at {r['scale']:g} times the full length. {machine_line(r)}\n"
        for r in found
    )
    return out + table(*scheduler_tables.WRITERS[kind](found, around))


def block(name: str, results: dict[str, Result]) -> str:
    """The generated text of one block; ``targets`` and ``scheduler`` draw on all results."""
    if name == "scheduler":
        head, rows = scheduler_tables.must_hold_table(results)
        return table(head, rows) if len(head) > 1 else "Not measured yet.\n"
    if name in scheduler_tables.KINDS:
        return scheduler_block(name, results)
    if name == "bmt":
        return bmt(results)
    if name == "targets":
        head, rows = targets_table(results)
        return table(head, rows)
    if name not in results:
        return "Not measured yet.\n"
    kind = name.split("-", 1)[0]
    if kind in TABLES:
        command_of, cells = TABLES[kind]
        text = _command(command_of(name, results[name])) + table(*cells(results[name], around))
        return f"{text}\n{machine_line(results[name])}"
    if kind in NAMED:
        return WRITERS[kind](results[name], name)
    return WRITERS[kind](results[name])


def command(name: str, result: Result) -> str:
    """The command line that makes a result."""
    kind = name.split("-", 1)[0]
    shared = kind in GROUPS
    return block(kind if shared else name, {name: result}).split("`")[1]


def fill(page: str, results: dict[str, Result]) -> str:
    """The page with every block written anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}{block(m[2], results)}{m[3]}", page)


def read_results(folder: Path = RESULTS) -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def all_tables(results: dict[str, Result]) -> str:
    """Every result there is, one after another; promises and limits are on the page alone."""
    names = [n for n in results if n.split("-", 1)[0] in {*WRITERS, *TABLES}]
    names += [k for k in scheduler_tables.KINDS if scheduler_tables.of_kind(k, results)]
    names += ["bmt"] if scheduler_tables.of_kind("bmt", results) else []
    return "\n".join(f"## {name}\n\n{block(name, results)}" for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--tables", action="store_true", help="write TABLES.md, leave the page")
    options = parser.parse_args()
    if not options.check:
        (RESULTS / "TABLES.md").write_text(all_tables(read_results()), encoding="utf-8")
    if options.tables:
        print(f"tables are in {RESULTS.parent.name}/{RESULTS.name}/TABLES.md")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    filled = fill(page, read_results())
    if options.check:
        return int(page != filled)
    PAGE.write_text(filled, encoding="utf-8")
    print(f"{PAGE.name} is up to date with {RESULTS.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
