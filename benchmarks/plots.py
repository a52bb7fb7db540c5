"""Pictures of the scheduler's benchmarks, with matplotlib (`make setup-test` installs it).

``draw`` makes the picture beside a result; its pieces serve ``tools/release_charts.py`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.names import OURS, THEIRS
from benchmarks.timeline import Row
from benchmarks.turns import say

SEPARATE, LIBRARY = "separate", "llama-batched-bench"
BACKEND_SAMPLING = "llama-server, backend sampling"
COLORS = {OURS: "#1565c0", THEIRS: "#e65100", SEPARATE: "#616161", BACKEND_SAMPLING: "#ffb300",
          LIBRARY: "#9e9e9e"}  # fmt: skip
NOT_INSTALLED = "matplotlib is not installed: make setup-test"

Spread = Mapping[str, float]


def pyplot() -> Any | None:
    """``matplotlib.pyplot``, set to draw into files; None where it is not installed."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    return pyplot


def draw(result: dict[str, Any], rows: list[Row], path: Path) -> bool:
    """Write the picture of a result; False, and a word why, without matplotlib."""
    plot = pyplot()
    if plot is None:
        say(f"no plot: {NOT_INSTALLED}; {path.name}")
        return False
    figure, axes = plot.subplots(1, 2, figsize=(11, 4))
    DRAWERS[result["benchmark"]](axes, result, rows)
    figure.suptitle(f"{result['benchmark'].replace('_', ' ')}: {result['model']}")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plot.close(figure)
    return True


# --- pieces ---------------------------------------------------------------------------------------


def side_title(side: str) -> str:
    """What a legend calls a side."""
    return "4 llama-servers" if side == SEPARATE else side


def sides_of(result: dict[str, Any], names: Sequence[str]) -> dict[str, list[Spread | None]]:
    """The spreads of some figures by side, ours first; None where a side has no such figure."""
    figures = [result["figures"].get(name, {}) for name in names]
    return {
        side: [f.get(side) for f in figures] for side in COLORS if any(side in f for f in figures)
    }


def bars(axis: Any, sides: Mapping[str, Sequence[Spread | None]], ticks: Sequence[str]) -> None:
    """A group of bars for each of ``ticks``: medians as written above them, and a line from the
    10th to the 90th percentile where there was more than one round."""
    wide = 0.84 / max(len(sides), 1)
    for j, (side, spreads) in enumerate(sides.items()):
        found = [(i + (j - (len(sides) - 1) / 2) * wide, s) for i, s in enumerate(spreads) if s]
        at, medians = [x for x, _ in found], [s["median"] for _, s in found]
        axis.bar(at, medians, 0.94 * wide, color=COLORS.get(side), label=side_title(side))
        for x, s in found:
            many = s.get("n", 1) > 1
            if many:
                axis.plot([x, x], [s["p10"], s["p90"]], color="black", lw=0.9)
            top = max(s["median"], s["p90"]) if many else s["median"]
            axis.annotate(short(s["median"]), (x, top), (0, 2), textcoords="offset points",
                          ha="center", fontsize=7.5)  # fmt: skip
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlim(-0.6, len(ticks) - 0.4)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.06)
    axis.grid(visible=False, axis="x")


def short(value: float) -> str:
    """About three digits, for the end of a bar."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def gaps(rows: list[Row], target: str, phase: str) -> tuple[list[float], list[float]]:
    """Seconds and gaps in ms of the interactive tokens of a phase."""
    by_session: dict[str, list[float]] = {}
    for row in rows:
        if row.target == target and row.phase == phase and row.is_interactive:
            by_session.setdefault(row.session_id, []).append(row.ts_ms)
    at, out = [], []
    for times in by_session.values():
        for a, b in zip(times, times[1:], strict=False):
            at.append(b / 1e3)
            out.append(b - a)
    return at, out


def tokens_so_far(axis: Any, rows: list[Row], phase: str) -> None:
    """How many interactive tokens each side has given since the phase began, as steps; a side that
    stands still is a level line to the end."""
    here = [row for row in rows if row.phase == phase and row.is_interactive]
    end_s = max((row.ts_ms for row in here), default=0.0) / 1e3
    for side in COLORS:
        times = sorted(row.ts_ms / 1e3 for row in here if row.target == side)
        if times:
            axis.step([0.0, *times, end_s], [*range(len(times) + 1), len(times)], where="post",
                      color=COLORS[side], label=side_title(side), lw=1.8)  # fmt: skip
    axis.set(xlim=(0, end_s), ylim=(0, None))


# --- pictures -------------------------------------------------------------------------------------


def _over_time(axes: Any, rows: list[Row], phases: tuple[str, ...]) -> None:
    for axis, phase in zip(axes, phases, strict=True):
        for target in (OURS, THEIRS):
            at, ms = gaps(rows, target, phase)
            if at:
                axis.plot(at, ms, ".", ms=3, color=COLORS[target], label=target)
        axis.set(title=phase, xlabel="seconds", ylabel="time between tokens, ms", yscale="log")
        if axis.has_data():
            axis.legend()


def _bars(axis: Any, result: dict[str, Any], names: list[str], title: str) -> None:
    bars(axis, sides_of(result, names), [name.replace("_", " ") for name in names])
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
            axis.plot(result["sessions"], values, "o-", color=COLORS[side], label=side)
        axis.set(title=name.replace("_", " "), xlabel="sessions", xscale="log", ylim=(0, None))
        axis.set_xticks(result["sessions"], [str(n) for n in result["sessions"]])
        axis.legend()


def _cap_curve(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    ours = [r for r in result["rows"] if r["side"] == OURS]
    labels = [r["cap"] for r in ours]
    for axis, key in zip(axes, ("tokens_per_s", "prompt_rate"), strict=True):
        for row in ours:
            axis.plot(row["p95_ratio"], row[key] or 0, "o", color=COLORS[OURS])
            axis.annotate(row["cap"], (row["p95_ratio"], row[key] or 0))
        for row in result["rows"]:
            if row["side"] == THEIRS:
                axis.plot(row["p95_ratio"], row[key] or 0, "s", color=COLORS[THEIRS])
                axis.annotate(THEIRS, (row["p95_ratio"], row[key] or 0))
        axis.set(title=f"{key.replace('_', ' ')}, caps {', '.join(labels)}", xscale="log",
                 xlabel="interactive p95 over its baseline")  # fmt: skip


def _kv_types(axes: Any, result: dict[str, Any], rows: list[Row]) -> None:
    kv_lines(axes[0], result, "tokens/s of one stream", lambda row: row["tokens_per_s"]["median"])
    kv_lines(axes[1], result, "bytes a token by estimate, MB", lambda row: row["mb_per_token"])


def kv_lines(
    axis: Any, result: dict[str, Any], title: str, value: Callable[[dict[str, Any]], float]
) -> None:
    """A figure of `benchmarks.kv_types` by KV cells in use, a line for each type and layout."""
    for kv_type, pack in dict.fromkeys((r["kv_type"], r["kv_pack"]) for r in result["rows"]):
        found = [r for r in result["rows"] if (r["kv_type"], r["kv_pack"]) == (kv_type, pack)]
        style = "o-" if pack == "token-major" else "s--"
        at, heights = [r["cells"] for r in found], [value(r) for r in found]
        axis.plot(at, heights, style, label=f"{kv_type}, {pack}")
    axis.set(title=title, xlabel="KV cells in use", xscale="log", ylim=(0, None))
    axis.set_xticks(result["cells"], [str(n) for n in result["cells"]])
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7)


DRAWERS: dict[str, Callable[[Any, dict[str, Any], list[Row]], None]] = {
    "storm": _storm, "mixed": _mixed, "agent_chain": _chain, "paste": _paste, "sweep": _sweep,
    "cap_curve": _cap_curve, "kv_types": _kv_types,
}  # fmt: skip
