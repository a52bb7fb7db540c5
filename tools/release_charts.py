"""The charts of a release from ``benchmarks/results``: mixed load, long context, types, overhead.

    python -m tools.release_charts
    python -m tools.release_charts --results my-results --out my-charts --formats png

Each model and machine that was measured gets a file of its own: ``mixed-LABEL.svg``,
``kv_sweep-LABEL.svg``, ``kv_types-LABEL.svg`` and ``overhead-LABEL.svg``, and the same as PNG.
Under every chart stand the commands that made its data, the machine and the commit.  Nothing is
measured here: where a result is missing, a sentence says which command makes it, the other charts
are still drawn, and the exit status is 1.  Status 2: wrong options, or no matplotlib.
"""

# Long: one short function for each chart.

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks import plots, report
from benchmarks.machine import RESULTS
from benchmarks.plots import COLORS, OURS, THEIRS
from benchmarks.scheduler_tables import KINDS
from benchmarks.timeline import Row, read_csv

CHARTS = RESULTS.parent.parent / "docs" / "charts"
FORMATS = ("svg", "png")
EXIT_OK, EXIT_MISSING, EXIT_USAGE = 0, 1, 2

WIDTH_IN, ROW_IN, DPI = 11.0, 3.1, 110
TEXT_PT, LINE_IN, FOOTER_CHARS = 7.5, 0.155, 185
# text stays text, and the same data gives the same bytes
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "umaserve", "font.size": 9, "axes.titlesize": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#e0e0e0", "grid.linewidth": 0.7, "legend.fontsize": 8,
    "legend.frameon": False,
}  # fmt: skip

Result = dict[str, Any]
Panel = Callable[[Any], None]
Found = TypeVar("Found", bound=Sized)


class Source(NamedTuple):
    """A result, and what it says under a chart."""

    name: str
    result: Result
    command: str

    @property
    def machine(self) -> str:
        """What `report` says of it, less the date and the commit."""
        line = report.machine_line(self.result).strip().removesuffix(".")
        return line.split(" on ", 1)[1].split(", umaserve ", 1)[0]

    @property
    def line(self) -> str:
        result, machine = self.result, self.result["machine"]
        words = [self.command, f"measured {machine['date']} UTC"]
        if "rounds" in result:
            rounds = f"{result['rounds']} round{'s' * (result['rounds'] != 1)}"
            scale = f" at {result['scale']:g} of the full length" if "scale" in result else ""
            words.append(rounds + scale)
        words.append(f"umaserve {machine.get('commit') or '(commit not recorded)'}")
        return "; ".join(words)


class Chart(NamedTuple):
    """``rows`` of panels, top to bottom."""

    name: str
    title: str
    rows: list[list[Panel]]
    sources: list[Source]
    notes: tuple[str, ...] = ()


def model_name(result: Result) -> str:
    """Name and quantisation, without the folder where a file was given."""
    name, _, quant = result["model"].rpartition(" ")
    return f"{Path(name or quant).name.removesuffix('.gguf')} {quant if name else ''}".strip()


def label(result: Result) -> str:
    """Model and, where that is not the processor, backend: as the result files are called."""
    model, backend = model_name(result).split()[0], result["machine"]["backend"]
    return model if backend == "cpu" else f"{backend}-{model}"


# --- results --------------------------------------------------------------------------------------


class Missing(Exception):
    """A chart, or a part of it, that cannot be drawn; the text says why and what to run."""


class Results:
    """The JSON files of a folder; ``problems`` are sentences about what cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._found: dict[str, Result] = {}
        for path in sorted(folder.glob("*.json")):
            try:
                self._found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                self.problems.append(f"{path.name} cannot be read ({error}); make it again")

    def have(self, kind: str) -> bool:
        return any(name.split("-", 1)[0] == kind for name in self._found)

    def of_kind(self, kind: str) -> list[Source]:
        found = []
        for name, result in self._found.items():
            if name.split("-", 1)[0] == kind:
                with self.noting(f"{name}.json"):
                    found.append(Source(name, result, command(kind, name, result)))
        return found

    def rows(self, source: Source) -> list[Row]:
        """The token times beside a result; none where they were not kept."""
        path = self.folder / f"{source.name}.csv.gz"
        if not path.exists():
            return []
        try:
            return read_csv(path)
        except (OSError, EOFError, KeyError, ValueError) as error:
            text = f"{path.name} cannot be read ({error!r}); make it again: {source.command}"
            self.problems.append(text)
            return []

    def noting(self, name: str) -> _Noting:
        """A context in which a result that lacks something becomes a problem."""
        return _Noting(self.problems, name)


class _Noting:
    def __init__(self, problems: list[str], name: str) -> None:
        self._problems, self._name = problems, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Missing):
            self._problems.append(str(error))
            return True
        if isinstance(error, (KeyError, IndexError, TypeError, AttributeError, StopIteration)):
            text = f"{self._name} has not what this chart needs ({error!r}); make it again"
            self._problems.append(text)
            return True
        return False


def command(kind: str, name: str, result: Result) -> str:
    """As it stands above the table of this result in docs/BENCHMARKS.md."""
    if kind == "bmt":
        rows = ",".join(str(n) for n in sorted({t["rows"] for t in result["ticks"] if t["rows"]}))
        prompts = ",".join(str(n) for n in sorted({t["prompt"] for t in result["ticks"]}) if n)
        model, _, quant = result["model"].partition(" ")
        return (
            f"python -m benchmarks.bmt --model {model} --quant {quant} --rows {rows} "
            f'--prompts "{prompts}" --depth {result["depth"]} --threads {result["threads"]} '
            f"--name {name}"
        )
    if kind in KINDS:
        return report.scheduler_block(kind, {name: result}).split("`")[1]
    return report.block(name, {name: result}).split("`")[1]


# --- mixed load -----------------------------------------------------------------------------------


def mixed(results: Results) -> Iterator[Chart]:
    sources = results.of_kind("mixed")
    if not results.have("mixed"):
        raise Missing("no mixed load: there is no mixed-*.json; run python -m benchmarks.mixed")
    for source in sources:
        with results.noting(f"{source.name}.json"):
            yield _mixed(source, results.rows(source))


def _mixed(source: Source, rows: list[Row]) -> Chart:
    result = source.result
    figures = result["figures"]
    alone, beside = "the three alone", "with the long job"

    def group(names: list[str], title: str, unit: str, ticks: list[str]) -> Panel:
        def panel(axis: Any) -> None:
            plots.bars(axis, plots.sides_of(result, names), ticks)
            axis.set(title=title, ylabel=unit)

        return panel

    def ratios(name: str) -> str:
        """How much worse the second of two bars is, by side."""
        found = figures.get(name, {})
        return ", ".join(
            f"{side} × {plots.short(found[side]['median'])}" for side in COLORS if side in found
        )

    def memory(axis: Any) -> None:
        gb = {
            side: [s and {**s, **{k: s[k] / 1e9 for k in ("median", "p10", "p90")}} for s in found]
            for side, found in plots.sides_of(result, ["rss", "pss"]).items()
        }
        plots.bars(axis, gb, ["RSS", "PSS"])
        axis.set(title="Memory", ylabel="GB")

    def course(phase: str, title: str) -> Panel:
        def panel(axis: Any) -> None:
            plots.tokens_so_far(axis, rows, phase)
            axis.set(title=title, xlabel="seconds", ylabel="tokens so far, three streams")

        return panel

    panels = [
        group(["three_p95_ms", "mixed_p95_ms"], "Time between tokens, p95", "ms",
              [alone, f"{beside}\n{ratios('p95_ratio')}"]),
        group(["first_alone_ms", "first_meeting_ms"], "Time to the first token", "ms",
              ["alone", f"meets a long prompt\n{ratios('first_ratio')}"]),
        group(["three_tokens_per_s", "mixed_tokens_per_s"], "Tokens generated", "tokens/s",
              [alone, beside]),
        memory,
    ]  # fmt: skip
    grid = [panels[:2], panels[2:]]
    if any(row.is_interactive for row in rows):
        grid.insert(0, [course("three", f"Interactive tokens, {alone}"),
                        course("mixed", f"Interactive tokens, {beside}")])  # fmt: skip
    notes = (
        f"The long job: prompts of {result['document_tokens']} tokens, one after another. Times "
        "between tokens are those of the three. RSS counts shared pages for each process, PSS "
        "divides them.",
    )
    return Chart(source.name, "Mixed load: three interactive streams and one long job", grid,
                 [source], notes)  # fmt: skip


def one_name_each(groups: Mapping[tuple[str, str], Found]) -> Iterator[tuple[str, Found]]:
    """Results by model and machine: the machine with most of a model's has the model's name, others
    a number after it."""
    taken: Counter[str] = Counter()
    for (name, _), found in sorted(groups.items(), key=lambda item: -len(item[1])):
        taken[name] += 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}", found


# --- long context ---------------------------------------------------------------------------------

KV_COMMAND = (
    'python -m benchmarks.bmt --rows 1,4 --prompts "" --depth N --name bmt-N, once for each of '
    "N = 1024, 4096, 16384"
)


def kv_sweep(results: Results) -> Iterator[Chart]:
    groups: dict[tuple[str, str], list[Source]] = {}
    for source in results.of_kind("bmt"):
        with results.noting(f"{source.name}.json"):
            groups.setdefault((label(source.result), source.machine), []).append(source)
    enough = {key: found for key, found in groups.items() if len(_depths(found)) > 1}
    if not enough:
        raise Missing(
            "no long-context KV sweep: no model has ticks at two or more KV lengths in bmt-*.json "
            f"(benchmarks.sweep counts sessions); run {KV_COMMAND}"
        )
    for name, found in one_name_each(enough):
        with results.noting(", ".join(f"{s.name}.json" for s in found)):
            yield _kv_sweep(name, found)


def _depths(sources: list[Source]) -> list[int]:
    return sorted({source.result["depth"] for source in sources})


def _kv_sweep(name: str, sources: list[Source]) -> Chart:
    """Decoding ticks by KV type (bytes of a cell) and rows."""
    series: dict[tuple[float, int], list[tuple[int, Result]]] = {}
    sources = sorted(sources, key=lambda source: source.result["depth"])
    probe = max((source.result["probe_gbps"] or 0.0 for source in sources), default=0.0)
    for source in sources:
        result = source.result
        for tick in result["ticks"]:
            if tick["rows"] and not tick["prompt"]:
                key = (result["traffic"]["kv_cell"], tick["rows"])
                series.setdefault(key, []).append((result["depth"], tick))
    cells = {cell for cell, _ in series}
    styles = ("-", "--", ":", "-.")
    shades = ("#90caf9", "#42a5f5", "#1565c0", "#0d2f6b")
    look = {}
    for key in sorted(series):
        rows = sorted({n for _, n in series})
        look[key] = {
            "color": shades[rows.index(key[1]) * (len(shades) - 1) // max(len(rows) - 1, 1)],
            "ls": styles[sorted(cells).index(key[0]) % len(styles)],
            "label": f"{key[1]} stream{'s' * (key[1] > 1)}"
            + (f", {key[0]:,.0f} B a cell" if len(cells) > 1 else ""),
            "marker": "o",
        }

    def time(axis: Any) -> None:
        for key, found in sorted(series.items()):
            axis.plot([d for d, _ in found], [t["ms"] for _, t in found], **look[key])
        depths = _depths(sources)
        axis.set_xscale("log", base=2)
        axis.set_xticks(depths, [f"{d:,}" for d in depths])
        axis.set(title="Time between tokens (one tick)", xlabel="KV cells of each stream",
                 ylabel="ms", ylim=(0, None))  # fmt: skip
        axis.legend()

    def rate(axis: Any) -> None:
        for key, found in sorted(series.items()):
            moved = [t["estimate_mb"] / key[1] for _, t in found]
            axis.plot(moved, [1e3 * key[1] / t["ms"] for _, t in found], **look[key])
        if probe:
            low, high = axis.get_xlim()
            line = [low + (high - low) * i / 60 for i in range(1, 61)]
            line = [mb for mb in line if mb > 0]
            axis.plot(line, [1e3 * probe / mb for mb in line], color="#9e9e9e", lw=1,
                      label=f"all of the probed {probe:.0f} GB/s")  # fmt: skip
            top = max(1e3 * n / t["ms"] for (_, n), found in series.items() for _, t in found)
            axis.set_ylim(0, 1.6 * top)
        axis.set(title="Tokens/s against bytes moved for a token", ylabel="tokens/s",
                 xlabel="MB moved for a token (ΣBMT estimate)")  # fmt: skip
        axis.legend()

    cell = ", ".join(f"{c:,.0f}" for c in sorted(cells))
    notes = (f"Ticks of the bare library, all streams alike. Bytes of a KV cell: {cell}.",)
    title = "Long context: what KV cells cost"
    return Chart(f"kv_sweep-{name}", title, [[time, rate]], sources, notes)


# --- KV types -------------------------------------------------------------------------------------


def kv_types(results: Results) -> Iterator[Chart]:
    if not results.have("kv_types"):
        raise Missing("no KV types: there is no kv_types*.json; run python -m benchmarks.kv_types")
    groups = {(label(s.result), s.machine): [s] for s in results.of_kind("kv_types")}
    for name, found in one_name_each(groups):
        with results.noting(f"{found[0].name}.json"):
            yield _kv_types(name, found[0])


def _kv_types(name: str, source: Source) -> Chart:
    result = source.result

    def rate(axis: Any) -> None:
        plots.kv_lines(axis, result, "One stream, tokens/s", lambda r: r["tokens_per_s"]["median"])

    def moved(axis: Any) -> None:
        plots.kv_lines(
            axis, result, "MB moved for a token (ΣBMT estimate)", lambda r: r["mb_per_token"]
        )

    rows, title = result.get("perplexity", []), "KV types: one stream deep in its context"
    found = "; ".join(f"{r['kv_type']}, {r['kv_pack']} {r['perplexity']:.4f}" for r in rows)
    words = f"perplexity of the bundled model over {result.get('perplexity_tokens')} tokens: "
    notes = (words + found,) if rows else ()
    return Chart(f"kv_types-{name}", title, [[rate, moved]], [source], notes)


# --- overhead -------------------------------------------------------------------------------------

OVERHEAD = ("one_stream", "tick", "throughput")


def overhead(results: Results) -> Iterator[Chart]:
    groups: dict[tuple[str, str], dict[str, Source]] = {}
    for kind in OVERHEAD:
        if not results.have(kind):
            text = f"overhead without {kind}: there is no {kind}*.json; run python -m "
            results.problems.append(f"{text}benchmarks.{kind}")
        for source in results.of_kind(kind):
            with results.noting(f"{source.name}.json"):
                groups.setdefault((label(source.result), source.machine), {})[kind] = source
    if not groups:
        raise Missing("no overhead: no result of it can be used; run make bench")
    for name, found in one_name_each(groups):
        with results.noting(", ".join(f"{s.name}.json" for s in found.values())):
            yield _overhead(name, found)


def _overhead(name: str, found: dict[str, Source]) -> Chart:
    panels: list[Panel] = []
    notes: tuple[str, ...] = ()
    if "one_stream" in found:
        result = found["one_stream"].result
        panels.append(lambda axis, r=result: _one_stream(axis, r))
        notes = (
            f"One stream: {result['prompt_tokens']} prompt tokens; logits copied by our code: "
            f"{report.number(result['copied_bytes_per_token'])} bytes a token.",
        )
    if "tick" in found:
        rows = found["tick"].result["rows"]
        panels.append(lambda axis, r=rows: _tick(axis, r))
    if "throughput" in found:
        rows = found["throughput"].result["rows"]
        panels.append(lambda axis, r=rows: _throughput(axis, r, "tokens_per_s"))
        panels.append(lambda axis, r=rows: _throughput(axis, r, "cpu_s_per_1k"))
    grid = [panels[i : i + 2] for i in range(0, len(panels), 2)] if len(panels) != 3 else [panels]
    title = "Overhead: what serving costs beyond the decode"
    return Chart(f"overhead-{name}", title, grid, list(found.values()), notes)


def _one_stream(axis: Any, result: Result) -> None:
    """Ratios as bars, with what they are the ratio of."""
    figures = [
        ("first token", "first_token_ms", "ms"),
        ("CPU time,\n1000 tokens", "cpu_s_per_1k_tokens", "s"),
        ("on the wire,\na token", "wire_bytes_per_token", "bytes"),
        ("system calls,\na token", "system_calls_per_token", ""),
    ]
    ratios = {"first_token_ms": "first_token_ratio", "cpu_s_per_1k_tokens": "cpu_ratio"}
    names, values, texts = [], [], []
    for name, key, unit in figures:
        both = [result[key][side] for side in (OURS, THEIRS)]
        if None in both:
            continue
        ours, theirs = (v["median"] if isinstance(v, dict) else v for v in both)
        value = result[ratios[key]]["median"] if key in ratios else ours / theirs
        names.append(name)
        values.append(value)
        texts.append(f"{value:.2f}: {plots.short(ours)} to {plots.short(theirs)} {unit}".rstrip())
    at = range(len(names))
    axis.barh(at, values, 0.6, color=COLORS[OURS])
    axis.axvline(1.0, color=COLORS[THEIRS], lw=2)
    for i, (value, text) in enumerate(zip(values, texts, strict=True)):
        axis.annotate(text, (max(value, 1.0), i), (5, 0), textcoords="offset points",
                      va="center", fontsize=7.5)  # fmt: skip
    axis.set_yticks(at, names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set(title="One stream: umaserve over llama-server", xlabel="ratio (1: equal)",
             xlim=(0, 1.6 * max([1.0, *values])))  # fmt: skip


def _tick(axis: Any, rows: list[Result]) -> None:
    ticks = [str(row["sessions"]) for row in rows]
    sampling = [row["sampling_us"]["median"] for row in rows]
    outside = [row["overhead_us"]["median"] for row in rows]
    rest = [max(a - b, 0.0) for a, b in zip(outside, sampling, strict=True)]
    at = range(len(rows))
    axis.bar(at, sampling, 0.6, color=COLORS[OURS], label="umaserve: sampling")
    axis.bar(at, rest, 0.6, bottom=sampling, color="#90caf9", label="all else outside llama_decode")
    axis.grid(visible=False, axis="x")
    for i, row in enumerate(rows):
        axis.annotate(f"{row['share']['median']:.1%} of {row['period_ms']['median']:.3g} ms",
                      (i, sampling[i] + rest[i]), (0, 3), textcoords="offset points",
                      ha="center", fontsize=7.5)  # fmt: skip
    axis.set_xticks(at, ticks)
    axis.set(title="Outside llama_decode, and share of a tick", ylabel="µs a tick, medians",
             xlabel="sessions", ylim=(0, 1.12 * max(outside)))  # fmt: skip
    axis.legend(loc="upper left")


def _throughput(axis: Any, rows: list[Result], key: str) -> None:
    names = [side for side in COLORS if any(side in row[key] for row in rows)]
    sides = {side: [row[key].get(side) for row in rows] for side in names}
    plots.bars(axis, sides, [str(row["streams"]) for row in rows])
    if key == "tokens_per_s":
        axis.set(title="Throughput, prompts included", ylabel="tokens/s", xlabel="streams")
    else:
        axis.set(title="Processor time, all processes", xlabel="streams",
                 ylabel="CPU s for 1000 tokens")  # fmt: skip


# --- drawing --------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Results], Iterator[Chart]]] = {
    "mixed load": mixed, "long-context KV sweep": kv_sweep, "KV types": kv_types,
    "overhead": overhead,
}  # fmt: skip


def footer(chart: Chart) -> list[str]:
    lines = list(chart.notes) + [source.line for source in chart.sources]
    lines += dict.fromkeys(f"{model_name(s.result)} on {s.machine}" for s in chart.sources)
    return [
        part for line in lines for part in textwrap.wrap(line, FOOTER_CHARS, break_on_hyphens=False)
    ]


def draw(pyplot: Any, chart: Chart, folder: Path, formats: list[str]) -> list[Path]:
    """Write one chart in every format; returns the files."""
    lines = footer(chart)
    columns = max(len(row) for row in chart.rows)
    model, place = model_name(chart.sources[0].result), chart.sources[0].machine
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure()
        for i, row in enumerate(chart.rows):
            for j, panel in enumerate(row):
                panel(figure.add_subplot(len(chart.rows), columns, i * columns + j + 1))
        sides = {
            text: handle
            for axis in figure.axes
            if axis.get_legend() is None
            for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        below, above = LINE_IN * len(lines) + 0.1, 0.85 if sides else 0.62
        height = below + above + ROW_IN * len(chart.rows)
        figure.set_size_inches(WIDTH_IN, height)
        for axis in figure.axes:
            axis.title.set_fontweight("bold")
        if sides:
            figure.legend(sides.values(), sides, loc="upper left", ncols=len(sides), fontsize=9,
                          borderaxespad=0, bbox_to_anchor=(0.012, 1 - 0.58 / height))  # fmt: skip
        figure.text(0.012, 1 - 0.24 / height, chart.title, fontsize=13, fontweight="bold")
        figure.text(0.012, 1 - 0.45 / height, f"{model} on {place.split(', Linux')[0]}",
                    fontsize=9, color="#424242")  # fmt: skip
        figure.text(0.012, 0.06 / height, "\n".join(lines), fontsize=TEXT_PT, color="#424242",
                    va="bottom", linespacing=1.35)  # fmt: skip
        figure.tight_layout(rect=(0, below / height, 1, 1 - above / height))
        paths = []
        for kind in formats:
            path = folder / f"{chart.name}.{kind}"
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(path, format=kind, dpi=DPI, metadata=metadata)
            paths.append(path)
        pyplot.close(figure)
    return paths


def make(results: Results, folder: Path, formats: list[str], pyplot: Any) -> list[Path]:
    """Draw all charts that there are results for; ``results.problems`` says what is missing."""
    written = []
    for name, maker in MAKERS.items():
        try:
            for chart in maker(results):
                with results.noting(f"{chart.name}: its result"):
                    paths = draw(pyplot, chart, folder, formats)
                    print(f"{name}: {', '.join(path.name for path in paths)}", flush=True)
                    written += paths
        except Missing as missing:
            results.problems.append(str(missing))
    return written


def _formats(text: str) -> list[str]:
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in wanted if word not in FORMATS]
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(f"{text!r}: give one or both of {', '.join(FORMATS)}")
    return list(dict.fromkeys(wanted))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR",
        help="where the JSON and csv.gz files are (benchmarks/results)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=CHARTS, metavar="DIR", help="for the charts (docs/charts)"
    )
    parser.add_argument("--formats", type=_formats, default=list(FORMATS), metavar="svg,png",
                        help="one or both (both)")  # fmt: skip
    options = parser.parse_args(arguments)
    if not options.results.is_dir():
        parser.error(f"--results: {options.results} is no folder")
    pyplot = plots.pyplot()
    if pyplot is None:
        print(f"no chart: {plots.NOT_INSTALLED}", file=sys.stderr)
        return EXIT_USAGE
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    make(results, options.out, options.formats, pyplot)
    for problem in dict.fromkeys(results.problems):
        print(problem, file=sys.stderr)
    return EXIT_MISSING if results.problems else EXIT_OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
