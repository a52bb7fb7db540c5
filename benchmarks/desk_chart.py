"""A chart of the latencies of a desk's programs, both servers side by side, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.names import OURS, THEIRS
from benchmarks.plots import NOT_INSTALLED, bars, pyplot
from benchmarks.turns import say

LATENCIES = (
    ("chat.first_p50_ms", "chat:\nfirst token"),
    ("chat.gap_p95_ms", "chat:\np95 gap"),
    ("chat.ten_ms", "chat: mean\nof ten gaps"),
    ("chat.longest_ms", "chat:\nlongest gap"),
    ("editor.answer_p50_ms", "editor:\ncompletion"),
    ("agents.first_p50_ms", "agents:\nfirst token"),
    ("agents.answer_p50_ms", "agents:\nturn"),
    ("documents.answer_p50_ms", "documents:\nsummary"),
)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Write a row of bars for each model; say so where matplotlib is missing."""
    plot = pyplot()
    if plot is None:
        say(f"no chart: {NOT_INSTALLED}")
        return
    figure, axes = plot.subplots(
        len(results), 1, figsize=(11, 3.6 * len(results)), squeeze=False, layout="constrained"
    )
    for axis, result in zip(axes[:, 0], results, strict=True):
        figures = result["figures"]
        sides = {
            side: [figures.get(name, {}).get(side) for name, _ in LATENCIES]
            for side in (OURS, THEIRS)
            if any(side in figures.get(name, {}) for name, _ in LATENCIES)
        }
        bars(axis, sides, [title for _, title in LATENCIES])
        axis.set(yscale="log", ylabel="ms", title=result["model"])
        axis.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
    plot.close(figure)
