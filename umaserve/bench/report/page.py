"""The report: one HTML file that needs nothing else, and its charts as SVG files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from umaserve.bench.report.charts import CHARTS, Chart, svg
from umaserve.bench.report.table import rows, shown, unlabelled_text, verdict_text
from umaserve.bench.result import Result, Verdict
from umaserve.system.own_file import write_own

TEMPLATE = "page.html"
# a file of its own has no page around it
STYLE = (
    "<style>:root{--ink:#1b1f24;--line:#d5dae1;background:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--line:#39424d;background:#12161b}}"
    "</style>"
)


def picture_paths(report: Path) -> list[Path]:
    """Where the charts of a report go: out.html has out-gaps.svg and so on beside it."""
    return [report.with_name(f"{report.stem}-{chart.name}.svg") for chart in CHARTS]


def write_report(result: Result, report: Path) -> list[Path]:
    """Write the page and the pictures; returns all their paths.  Raises ``OSError``."""
    pictures, drawn = picture_paths(report), [svg(chart, result) for chart in CHARTS]
    write_own(report, page(result, drawn, [path.name for path in pictures]).encode())
    for path, text in zip(pictures, drawn, strict=True):
        write_own(path, _alone(text).encode())
    return [report, *pictures]


def _alone(text: str) -> str:
    """An ``svg`` element as a file of its own."""
    head, _, rest = text.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{STYLE}{rest}'


def page(result: Result, drawn: list[str], pictures: list[str]) -> str:
    """The HTML, with the charts as drawn; ``pictures`` are the names of their files."""
    template = Template(resources.files(__package__).joinpath(TEMPLATE).read_text("utf-8"))
    machine, settings = result.machine, result.settings
    described = [machine.get(name) for name in ("model", "backend", "processor", "date")]
    verdicts = (
        _verdict(verdict_text(result), result.verdict),
        _verdict(unlabelled_text(result), result.pace),
    )
    streams = (
        (s.stream, s.alone_gaps, s.mixed_gaps, shown(s.alone_p95_ms), shown(s.mixed_p95_ms))
        for s in result.streams
    )
    daemon = "started for this run" if result.own_daemon else "one that ran already"
    made = {"command": result.command, "daemon": daemon, **machine, **settings}
    return template.substitute(
        model=escape(str(machine.get("model"))),
        described=escape(" · ".join(str(each) for each in described if each)),
        verdicts="\n".join(verdicts),
        notes="\n".join(f'<p class="note">{escape(note)}</p>' for note in result.notes),
        scorecard=_rows((row.name, row.unit, *row.cells) for row in rows(result)),
        interactive=settings["interactive"],
        background=settings["background"],
        seconds=f"{settings['seconds']:g}",
        charts="\n".join(map(_figure, CHARTS, drawn, pictures)),
        streams=_rows(streams),
        made=_rows((name.replace("_", " "), value) for name, value in made.items()),
    )


def _verdict(sentence: str, verdict: Verdict | None) -> str:
    """A sentence with its first words in the colour of the verdict."""
    tone = "odd"
    if verdict is not None:
        tone = "good" if verdict.held else "bad" if verdict.missed else "odd"
    word, colon, rest = (escape(part) for part in sentence.partition(": "))
    return (
        f'<p class="verdict" style="--tone: var(--{tone})"><strong>{word}{colon}</strong>{rest}</p>'
    )


def _rows(lines: Iterable[Sequence[object]]) -> str:
    """Rows of a table, each with a name before its cells."""
    out = []
    for name, *cells in lines:
        told = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        out.append(f'<tr><th scope="row">{escape(str(name))}</th>{told}</tr>')
    return "\n".join(out)


def _figure(chart: Chart, drawn: str, name: str) -> str:
    return (
        f'<figure id="{chart.name}">\n<h3>{escape(chart.title)}</h3>\n{drawn}'
        f"<figcaption>{escape(chart.caption)} Also as <code>{escape(name)}</code>.</figcaption>\n"
        "</figure>"
    )
