"""Pictures of the scheduler's benchmarks, with matplotlib (``pip install 'umaserve[bench]'``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.names import OURS, THEIRS
from benchmarks.timeline import Row
from benchmarks.turns import say

_COLORS = {OURS: "#1565c0", THEIRS: "#e65100", "separate": "#616161"}


def draw(result: dict[str, Any], rows: list[Row], path: Path) -> bool:
    """Write the picture of a result; False, and a word why, without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        say(f"no plot: matplotlib is not installed (pip install 'umaserve[bench]'); {path.name}")
        return False
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    DRAWERS[result["benchmark"]](axes, result, rows)
    figure.suptitle(f"{result['benchmark'].replace('_', ' ')}: {result['model']}")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return True


def _gaps(rows: list[Row], target: str, phase: str) -> tuple[list[float], list[float]]:
    """Seconds and gaps in ms of the interactive tokens of a phase."""
    by_session: dict[str, list[float]] = {}
    for row in rows:
        if row.target == target and row.phase == phase and row.is_interactive:
            by_session.setdefault(row.session_id, []).append(row.ts_ms)
    at, gaps = [], []
    for times in by_session.values():
        for a, b in zip(times, times[1:], strict=False):
            at.append(b / 1e3)
            gaps.append(b - a)
    return at, gaps


def _over_time(axes: Any, rows: list[Row], phases: tuple[str, ...]) -> None:
    for axis, phase in zip(axes, phases, strict=True):
        for target in (OURS, THEIRS):
            at, gaps = _gaps(rows, target, phase)
            if at:
                axis.plot(at, gaps, ".", ms=3, color=_COLORS[target], label=target)
        axis.set(title=phase, xlabel="seconds", ylabel="time between tokens, ms", yscale="log")
        if axis.has_data():
            axis.legend()


def _bars(axis: Any, result: dict[str, Any], names: list[str], title: str) -> None:
    sides = sorted({side for n in names for side in result["figures"].get(n, {})}, reverse=True)
    for i, side in enumerate(sides):
        spreads = [result["figures"].get(n, {}).get(side) for n in names]
        values = [s["median"] if s else 0 for s in spreads]
        at = [j + i * 0.8 / len(sides) for j in range(len(names))]
        axis.bar(at, values, 0.8 / len(sides), label=side, color=_COLORS.get(side))
    axis.set_xticks([j + 0.2 for j in range(len(names))], [n.replace("_", " ") for n in names])
    axis.tick_params(axis="x", labelrotation=20, labelsize=8)
    axis.set(title=title)
    axis.legend()


def _storm(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    _over_time(axes, rows, ("alone", f"storm{max(result['clients'])}"))


def _mixed(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    _over_time(axes[:1], rows, ("mixed",))
    _bars(axes[1], result, ["mixed_tokens_per_s", "three_tokens_per_s"], "tokens/s generated")


def _chain(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    _bars(axes[0], result, ["alone_s", "beside_s"], "seconds of the chain")
    _bars(axes[1], result, ["makespan_ratio"], "beside decoders over alone")


def _paste(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    kinds = ["alone", "background", "interactive"]
    _bars(axes[0], result, [f"fifth_token_ms_{k}" for k in kinds], "fifth token, ms")
    _bars(axes[1], result, [f"pause_ms_{k}" for k in kinds], "longest pause in 3 s, ms")


def _sweep(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    titles = ("tokens_per_s", "p95_ms")
    for axis, name in zip(axes, titles, strict=True):
        for side in (OURS, THEIRS):
            values = [result["figures"][f"{name}@{n}"][side]["median"] for n in result["sessions"]]
            axis.plot(result["sessions"], values, "o-", color=_COLORS[side], label=side)
        axis.set(title=name.replace("_", " "), xlabel="sessions", xscale="log", ylim=(0, None))
        axis.set_xticks(result["sessions"], [str(n) for n in result["sessions"]])
        axis.legend()


def _cap_curve(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    ours = [r for r in result["rows"] if r["side"] == OURS]
    labels = [r["cap"] for r in ours]
    for axis, key in zip(axes, ("tokens_per_s", "prompt_rate"), strict=True):
        for row in ours:
            axis.plot(row["p95_ratio"], row[key] or 0, "o", color=_COLORS[OURS])
            axis.annotate(row["cap"], (row["p95_ratio"], row[key] or 0))
        for row in result["rows"]:
            if row["side"] == THEIRS:
                axis.plot(row["p95_ratio"], row[key] or 0, "s", color=_COLORS[THEIRS])
                axis.annotate(THEIRS, (row["p95_ratio"], row[key] or 0))
        axis.set(title=f"{key.replace('_', ' ')}, caps {', '.join(labels)}", xscale="log",
                 xlabel="interactive p95 over its baseline")  # fmt: skip


DRAWERS: dict[str, Callable[[Any, dict[str, Any], list[Row]], None]] = {
    "storm": _storm, "mixed": _mixed, "agent_chain": _chain, "paste": _paste, "sweep": _sweep,
    "cap_curve": _cap_curve,
}  # fmt: skip
