"""Tables of the scheduler's benchmarks for ``benchmarks/report.py``, a line for each model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import must_hold
from benchmarks.names import OURS, THEIRS

Result = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
KINDS = (
    "storm", "mixed", "agent_chain", "paste", "first_tokens", "sweep", "cap_curve", "simulated",
    "unlabelled", "two_apps",
)  # fmt: skip


def of_kind(kind: str, results: dict[str, Result]) -> list[Result]:
    """The results of one benchmark, of every model and machine."""
    return [r for name, r in results.items() if name.split("-", 1)[0] == kind]


def _cells(result: Result, side: str, names: list[str], show: Callable[..., str]) -> list[str]:
    return [show(result["figures"].get(name, {}).get(side)) for name in names]


def must_hold_table(results: dict[str, Result]) -> Table:
    """Every figure with its two limits, and a column for each label that was measured."""
    by_label: dict[str, dict[str, Result]] = {}
    for kind in KINDS:
        for result in of_kind(kind, results):
            by_label.setdefault(result["label"], {})[kind] = result
    columns = [must_hold.lines(found) for found in by_label.values()]
    rows = []
    for i, demand in enumerate(must_hold.DEMANDS):
        row = [demand.text, *(must_hold.limit(demand, device) for device in (True, False))]
        for _, _, value, holds in (column[i] for column in columns):
            row.append(f"{value} {holds}" if holds == must_hold.MISSED else value)
        rows.append(row)
    return ["figure", "limit: accelerator", "limit: processor", *by_label], rows


def storm(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "clients", "side", "p95 alone, ms", "p95 in the storm, ms", "ratio",
            "longest pause, ms", "ratio", "prompt tokens/s", "after the stream"]  # fmt: skip
    rows = []
    for result in results:
        for n in result["clients"]:
            names = ["alone_p95_ms", f"p95_ms@{n}", f"p95_ratio@{n}", f"longest_ms@{n}",
                     f"longest_ratio@{n}", f"prompt_rate@{n}", f"after_rate@{n}"]  # fmt: skip
            for side in (OURS, THEIRS):
                rows.append([result["label"], str(n), side, *_cells(result, side, names, show)])
    return head, rows


def mixed(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "side", "p95 of three, ms", "with the long job, ms", "ratio",
            "first token alone, ms", "meets a long prompt, ms", "ratio", "tokens/s", "RSS, GB",
            "PSS, GB"]  # fmt: skip
    names = ["three_p95_ms", "mixed_p95_ms", "p95_ratio", "first_alone_ms", "first_meeting_ms",
             "first_ratio", "mixed_tokens_per_s"]  # fmt: skip
    rows = []
    for result in results:
        for side in (OURS, THEIRS, "separate"):
            gigabytes = []
            for name in ("rss", "pss"):
                found = result["figures"].get(name, {}).get(side)
                gigabytes.append(f"{found['median'] / 1e9:.2f}" if found else "-")
            title = "4 llama-servers" if side == "separate" else side
            cells = _cells(result, side, names, show)
            rows.append([result["label"], title, *cells, *gigabytes])
    return head, rows


def agent_chain(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "side", "alone, s", "beside decoders, s", "ratio", "decoders' tokens/s"]
    names = ["alone_s", "beside_s", "makespan_ratio", "decoders_tokens_per_s"]
    rows = [
        [r["label"], side, *_cells(r, side, names, show)]
        for r in results
        for side in (OURS, THEIRS)
    ]
    return head, rows


def paste(results: list[Result], show: Callable[..., str]) -> Table:
    kinds = ("alone", "background", "interactive")
    head = ["model", "side", "5th token alone, ms", "background paste", "interactive paste",
            "longest pause alone, ms", "background paste", "interactive paste"]  # fmt: skip
    names = [f"{figure}_{k}" for figure in ("fifth_token_ms", "pause_ms") for k in kinds]
    rows = [
        [r["label"], side, *_cells(r, side, names, show)]
        for r in results
        for side in (OURS, THEIRS)
    ]
    return head, rows


def lengths_of(results: list[Result]) -> list[int]:
    """The lengths of lone prompts that any result of `first_tokens` has."""
    return sorted({n for result in results for n in result["lengths"]})


def first_tokens(results: list[Result], show: Callable[..., str]) -> Table:
    lengths = lengths_of(results)
    head = ["model", "side", *(f"{n} tokens alone, ms" for n in lengths), "16 words alone, ms",
            "beside two streams", "ratio", "beside a document", "ratio"]  # fmt: skip
    names = [*(f"lone_ms@{n}" for n in lengths), "short_ms_alone", "short_ms_streams",
             "times_streams", "short_ms_document", "times_document"]  # fmt: skip
    rows = [
        [r["label"], side, *_cells(r, side, names, show)]
        for r in results
        for side in (OURS, THEIRS)
    ]
    return head, rows


def sweep(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "sessions", "umaserve, tokens/s", "llama-server", "ratio",
            "umaserve, p95 ms", "llama-server"]  # fmt: skip
    rows = []
    for result in results:
        for n in result["sessions"]:
            rate, p95 = f"tokens_per_s@{n}", f"p95_ms@{n}"
            rows.append(
                [result["label"], str(n), *_cells(result, OURS, [rate], show),
                 *_cells(result, THEIRS, [rate], show),
                 show(result["tokens_ours_over_theirs"][str(n)]),
                 *_cells(result, OURS, [p95], show), *_cells(result, THEIRS, [p95], show)]
            )  # fmt: skip
    return head, rows


def cap_curve(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "side", "cap", "p95 / alone", "longest, ms", "interactive tokens/s",
            "all tokens/s", "prompt tokens/s"]  # fmt: skip
    keys = ("p95_ratio", "longest_ms", "interactive_tokens_per_s", "tokens_per_s", "prompt_rate")
    rows = []
    for result in results:
        for row in result["rows"]:
            cells = ["-" if row[key] is None else f"{row[key]:.3g}" for key in keys]
            rows.append([result["label"], row["side"], row["cap"], *cells])
    return head, rows


def simulated(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "load", "figure", "real", "simulated", "simulated / real"]
    rows = []
    for result in results:
        for load, figures in result["loads"].items():
            for figure, values in figures.items():
                cells = [show(values[kind]) for kind in ("real", "simulated", "ratio")]
                rows.append([result["label"], load, figure, *cells])
    return head, rows


def unlabelled(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "clients", "tokens of a prompt", "side", "p95 alone, ms", "p95 beside, ms",
            "ratio", "longest pause, ms", "ratio", "prompt tokens/s"]  # fmt: skip
    names = ["alone_p95_ms", "p95_ms", "p95_ratio", "longest_ms", "longest_ratio", "prompt_rate"]
    rows = [
        [r["label"], str(r["clients"]), str(r["prompt_tokens"]), side,
         *_cells(r, side, names, show)]
        for r in results
        for side in (OURS, THEIRS)
    ]  # fmt: skip
    return head, rows


def two_apps(results: list[Result], show: Callable[..., str]) -> Table:
    head = ["model", "its streams", "its clients of prompts", "side", "tokens/s beside one",
            "beside all", "share", "p95 ratio", "the other's tokens/s",
            "prompt tokens/s"]  # fmt: skip
    names = ["one_rate", "all_rate", "share", "p95_ratio", "other_rate", "prompt_rate"]
    rows = [
        [r["label"], str(r["streams"]), str(r["clients"]), side, *_cells(r, side, names, show)]
        for r in results
        for side in (OURS, THEIRS)
    ]
    return head, rows


WRITERS: dict[str, Callable[[list[Result], Callable[..., str]], Table]] = {
    "storm": storm, "mixed": mixed, "agent_chain": agent_chain, "paste": paste,
    "first_tokens": first_tokens, "sweep": sweep, "cap_curve": cap_curve, "simulated": simulated,
    "unlabelled": unlabelled, "two_apps": two_apps,
}  # fmt: skip
