"""The tables of ``docs/BENCHMARKS*.md``: a benchmark's results of all models side by side.

The page shows medians.  ``benchmarks/results/TABLES.md`` has each result as a whole, with the 10th
and the 90th percentile (`benchmarks.report`).

Long: one short function for each table of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import cache_tables, draft_tables, http_tables, kv_tables, restart_tables
from benchmarks.names import OURS, THEIRS

Result = dict[str, Any]
Results = dict[str, Result]
Show = Callable[[float | None], str]
Table = tuple[list[str], list[list[str]]]
ONLY_WHOLE = ("simulated",)
"""Kinds that the page links to: their table is in ``TABLES.md`` alone."""


def kinds(block: str) -> tuple[str, ...]:
    """The kinds of results that a block of the page shows."""
    return OTHERS if block == "others" else (block,)


def place(name: str) -> str | None:
    """The block of the page that shows a result; None for what ``TABLES.md`` alone has."""
    kind = name.split("-", 1)[0]
    if kind in ONLY_WHOLE:
        return None
    return "others" if kind in OTHERS else kind


def _label(name: str, result: Result) -> str:
    """A model as the tables call it; an accelerator's backend stands before it."""
    model, backend = result["model"].split()[0], result["machine"]["backend"]
    return result.get("label") or (model if backend == "cpu" else f"{backend}-{model}")


def _middle(spread: dict[str, float] | None) -> float | None:
    return spread["median"] if spread else None


def _pair(result: Result, figure: str, show: Show) -> list[str]:
    found = result["figures"].get(figure, {})
    return [show(_middle(found.get(side))) for side in (OURS, THEIRS)]


def sampler(results: Results, show: Show) -> Table:
    rows = results["sampler"]["rows"]
    measured = {row["n_vocab"] for row in rows}
    sizes = sorted({max(measured), min(measured)}, reverse=True)
    head = ["setting"]
    for size in sizes:
        head += [f"{size:,} tokens: us", "x `numpy.max`", "llama.cpp / ours"]
    by_setting: dict[str, list[str]] = {}
    for size in sizes:
        for row in (row for row in rows if row["n_vocab"] == size):
            by_setting.setdefault(row["setting"], []).extend(
                show(_middle(spread))
                for spread in (row["us"]["ours"], row["ours_over_numpy"],
                               row.get("llama.cpp over ours"))
            )  # fmt: skip
    return head, [[setting, *cells] for setting, cells in by_setting.items()]


def tick(results: Results, show: Show) -> Table:
    counts = sorted({row["sessions"] for result in results.values() for row in result["rows"]})
    head = ["model"]
    for n in counts:
        sessions = f"{n} session{'s' * (n > 1)}"
        head += [f"{sessions}: outside, us", "of it sampling", "share of the tick"]
    rows = []
    for name, result in results.items():
        found = {row["sessions"]: row for row in result["rows"]}
        cells: list[str] = []
        for n in counts:
            row = found.get(n)
            if row is None:
                cells += ["-"] * 3
                continue
            cells += [show(_middle(row[key])) for key in ("overhead_us", "sampling_us")]
            cells.append(f"{row['share']['median']:.1%}")
        rows.append([_label(name, result), *cells])
    return head, rows


def throughput(results: Results, show: Show) -> Table:
    sides = [OURS, THEIRS, "llama-server, backend sampling", "llama-batched-bench"]
    head = ["model", "streams", *sides, *(f"over {side}" for side in sides[1:]),
            "CPU s for 1000 tokens", "llama-server"]  # fmt: skip
    rows = []
    for name, result in results.items():
        for row in result["rows"]:
            cells = [row["tokens_per_s"].get(side) for side in sides]
            cells += [row["ours_over"].get(side) for side in sides[1:]]
            cells += [row["cpu_s_per_1k"].get(side) for side in (OURS, THEIRS)]
            shown = [show(_middle(cell)) for cell in cells]
            rows.append([_label(name, result), str(row["streams"]), *shown])
    return head, rows


def one_stream(results: Results, show: Show) -> Table:
    figures = (
        ("time to first token, ms", "first_token_ms", "first_token_ratio"),
        ("tokens/s", "tokens_per_s", "tokens_per_s_ratio"),
        ("CPU seconds for 1000 tokens", "cpu_s_per_1k_tokens", "cpu_ratio"),
        ("bytes on the wire a token", "wire_bytes_per_token", ""),
        ("system calls a token (strace, one library thread)", "system_calls_per_token", ""),
    )
    head = ["figure"]
    for name, result in results.items():
        head += [f"{_label(name, result)}: umaserve, Unix socket", "llama-server, HTTP", "ratio"]
    rows = []
    for title, key, ratio in figures:
        row = [title]
        for result in results.values():
            values = [result[key][side] for side in (OURS, THEIRS)]
            row += [show(v["median"] if isinstance(v, dict) else v) for v in values]
            row.append(show(result[ratio]["median"]) if ratio else "-")
        rows.append(row)
    return head, rows


def storm(results: Results, show: Show) -> Table:
    figures = {"p95_ratio": "p95 / alone", "longest_ratio": "longest pause / alone",
               "prompt_rate": "prompt tokens/s", "after_rate": "after the stream"}  # fmt: skip
    head = ["model", "clients", *_both(figures.values())]
    rows = []
    for name, result in results.items():
        for n in result["clients"]:
            cells = [cell for key in figures for cell in _pair(result, f"{key}@{n}", show)]
            rows.append([_label(name, result), str(n), *cells])
    return head, rows


def _both(titles: Any) -> list[str]:
    return [text for title in titles for text in (title, "llama-server")]


def mixed(results: Results, show: Show) -> Table:
    figures = {"mixed_p95_ms": "p95 with the long job, ms", "p95_ratio": "over without",
               "first_meeting_ms": "first token that meets a long prompt, ms",
               "first_ratio": "over alone", "mixed_tokens_per_s": "tokens/s"}  # fmt: skip
    head = ["model", *_both(figures.values()), "4 llama-servers", "RSS, GB", "4 llama-servers"]
    rows = []
    for name, result in results.items():
        cells = [cell for key in figures for cell in _pair(result, key, show)]
        found = result["figures"]
        cells.append(show(_middle(found["mixed_tokens_per_s"].get("separate"))))
        cells += [f"{found['rss'][side]['median'] / 1e9:.2f}" for side in (OURS, "separate")]
        rows.append([_label(name, result), *cells])
    return head, rows


def _side_by_side(figures: dict[str, str], results: Results, show: Show) -> Table:
    """A line for each model: every figure, by its title, of both sides."""
    rows = [
        [_label(name, result), *(c for key in figures for c in _pair(result, key, show))]
        for name, result in results.items()
    ]
    return ["model", *_both(figures.values())], rows


def agent_chain(results: Results, show: Show) -> Table:
    figures = {"alone_s": "alone, s", "beside_s": "beside 4 decoders, s", "makespan_ratio": "ratio",
               "decoders_tokens_per_s": "decoders' tokens/s"}  # fmt: skip
    return _side_by_side(figures, results, show)


def paste(results: Results, show: Show) -> Table:
    figures = {"fifth_token_ms_alone": "5th token alone, ms",
               "fifth_token_ms_background": "beside a background paste",
               "fifth_token_ms_interactive": "beside an interactive paste",
               "pause_ms_alone": "longest pause alone, ms",
               "pause_ms_background": "beside a background paste",
               "pause_ms_interactive": "beside an interactive paste"}  # fmt: skip
    return _side_by_side(figures, results, show)


def unlabelled(results: Results, show: Show) -> Table:
    figures = {"alone_p95_ms": "p95 alone, ms", "p95_ratio": "p95 beside / alone",
               "longest_ratio": "longest pause / alone",
               "prompt_rate": "prompt tokens/s"}  # fmt: skip
    rows = [
        [_label(name, result), f"{result['clients']} of {result['prompt_tokens']} tokens",
         *(c for key in figures for c in _pair(result, key, show))]
        for name, result in results.items()
    ]  # fmt: skip
    return ["model", "clients", *_both(figures.values())], rows


def two_apps(results: Results, show: Show) -> Table:
    figures = {"one_rate": "tokens/s beside one", "all_rate": "beside all", "share": "ratio",
               "other_rate": "the other's tokens/s"}  # fmt: skip
    return _side_by_side(figures, results, show)


def first_tokens(results: Results, show: Show) -> Table:
    lengths = sorted({n for result in results.values() for n in result["lengths"]})
    figures = {f"lone_ms@{n}": f"{n} tokens alone, ms" for n in lengths}
    figures |= {"short_ms_alone": "16 words alone, ms",
                "times_streams": "beside two streams / alone",
                "times_document": "beside a document / alone"}  # fmt: skip
    rows = [
        [_label(name, result), *(c for key in figures for c in _pair(result, key, show))]
        for name, result in results.items()
    ]
    return ["model", *_both(figures.values())], rows


def sweep(results: Results, show: Show) -> Table:
    head = ["sessions"]
    for name, result in results.items():
        head += [f"{_label(name, result)}: tokens/s", "llama-server", "ratio"]
    rows = []
    for n in sorted({n for result in results.values() for n in result["sessions"]}):
        row = [str(n)]
        for result in results.values():
            ratio = result["tokens_ours_over_theirs"].get(str(n))
            row += [*_pair(result, f"tokens_per_s@{n}", show), show(_middle(ratio))]
        rows.append(row)
    return head, rows


def cap_curve(results: Results, show: Show) -> Table:
    head = ["cap"]
    by_cap: dict[str, list[str]] = {}
    for name, result in results.items():
        head += [f"{_label(name, result)}: p95 / alone", "tokens/s", "prompt tokens/s"]
        for row in result["rows"]:
            cap = row["cap"] if row["side"] == OURS else row["side"]
            keys = ("p95_ratio", "tokens_per_s", "prompt_rate")
            by_cap.setdefault(cap, []).extend(show(row[key]) for key in keys)
    return head, [[cap, *cells] for cap, cells in by_cap.items()]


def others(results: Results, show: Show) -> Table:
    """A line a figure; what it is compared with stands beside it."""
    rows = []
    for name, result in results.items():
        kind = name.split("-", 1)[0]
        lines = _bmt(result, results, show) if kind == "bmt" else _OTHERS[kind](result, show)
        rows += [[*line, f"`{name}`"] for line in lines]
    return ["figure", "measured", "compared with", "ratio", "run"], rows


def _first_token(r: Result, show: Show) -> list[list[str]]:
    title, ratio = "first token of a 16-word prompt, ms", show(r["ratio"]["median"])
    library = f"bare library: {show(r['library_ms']['median'])}"
    return [[title, show(r["daemon_ms"]["median"]), library, ratio]]


def _startup(r: Result, show: Show) -> list[list[str]]:
    ready = {side: show(found["median"]) for side, found in r["ready_s"].items()}
    theirs = f"llama-server: {ready.pop(THEIRS, '-')}"
    rows = [[f"seconds to ready: {side}", value, theirs, "-"] for side, value in ready.items()]
    if "first_start_s" in r:
        title = "seconds to ready: umaserve, nothing compiled yet"
        rows.append([title, show(r["first_start_s"]), "-", "-"])
    return rows


def _recovery(r: Result, show: Show) -> list[list[str]]:
    pause, start = (show(r[key]["median"]) for key in ("pause_ms", "engine_start_ms"))
    title = "pause of a stream whose engine is killed, ms"
    return [[title, pause, f"engine start: {start}", show(r["ratio_of_medians"])]]


def _busy_front(r: Result, show: Show) -> list[list[str]]:
    title = f"tick p95 of {r['model'].split()[0]} beside {r['connections']} connections, ms"
    quiet, busy = (show(r["tick_p95_ms"][key]["median"]) for key in ("quiet", "busy"))
    return [[title, busy, f"quiet: {quiet}", show(r["p95_ratio"]["median"])]]


def _hostile(r: Result, show: Show) -> list[list[str]]:
    titles = {"p95_ms": "p95 between tokens, ms", "longest_ms": "longest pause, ms",
              "ttft_p95_ms": "first token p95, ms"}  # fmt: skip
    rows = []
    for key, title in titles.items():
        alone, polite, hostile = (
            show(r["figures"][side][key]["median"]) for side in ("alone", "polite", "hostile")
        )
        ratio = show(r[f"hostile_over_polite_{key}"]["median"])
        beside = f"a polite program: {polite}; alone: {alone}"
        rows.append([f"{title}, beside a hostile program", hostile, beside, ratio])
    return rows


def _invariance(r: Result, show: Show) -> list[list[str]]:
    titles = {"alone_twice": "alone, run again", "with_seven_others": "with seven other streams",
              "killed": f"its engine killed {r['kills']} times"}  # fmt: skip
    equal, parted = list[str](), list[str]()
    for key, title in titles.items():
        found = r[key]
        equal.append(f"{title}: {found['equal']} of {found['streams']}")
        parted += map(str, found["parted_after_tokens"])
    rest = f"the others part after {', '.join(parted)} of {r['tokens']} tokens" if parted else "-"
    return [["greedy streams equal to the end", "; ".join(equal), rest, "-"]]


def _bmt(r: Result, results: Results, show: Show) -> list[list[str]]:
    """Its decoding ticks beside those with the fewest KV cells."""
    found = [result for name, result in results.items() if name.startswith("bmt-")]
    shortest = min(found, key=lambda result: result["depth"])
    if r is shortest:
        return []
    model, rows = r["model"].split()[0], []
    before = {t["rows"]: t["ms"] for t in shortest["ticks"] if not t["prompt"]}
    for t in (t for t in r["ticks"] if not t["prompt"]):
        streams = f"{t['rows']} stream{'s' * (t['rows'] > 1)} of {model}"
        title = f"tick of {streams}, {r['depth']} KV cells each, ms"
        ms = before[t["rows"]]
        rows.append([title, show(t["ms"]), f"{shortest['depth']} cells: {show(ms)}",
                     show(t["ms"] / ms)])  # fmt: skip
    return rows


_OTHERS: dict[str, Callable[[Result, Show], list[list[str]]]] = {
    "first_token": _first_token, "startup": _startup, "recovery": _recovery,
    "busy_front": _busy_front, "hostile": _hostile, "invariance": _invariance,
    "http_cost": http_tables.cost_lines, "http_memory": http_tables.memory_lines,
}  # fmt: skip
OTHERS = (*_OTHERS, "bmt")
"""Kinds with few figures: they share one table."""

WRITERS: dict[str, Callable[[Results, Show], Table]] = {
    "sampler": sampler, "tick": tick, "throughput": throughput, "one_stream": one_stream,
    "storm": storm, "mixed": mixed, "agent_chain": agent_chain, "paste": paste,
    "first_tokens": first_tokens, "sweep": sweep,
    "cap_curve": cap_curve, "others": others, "unlabelled": unlabelled, "two_apps": two_apps,
    "cache": cache_tables.page, "full_cache": cache_tables.full_page, "kv_types": kv_tables.page,
    "restart": restart_tables.page,
    "working_set": cache_tables.working_page, "drafts": draft_tables.page,
}  # fmt: skip
