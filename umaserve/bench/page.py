"""The report: one HTML file that needs nothing else, and its charts as PNG files beside it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from umaserve.bench.charts import CHARTS, png, svg
from umaserve.bench.result import Result
from umaserve.bench.table import rows, shown, unlabelled_text, verdict_text
from umaserve.own_file import write_own

TEMPLATE = "page.html.jinja"


def picture_paths(report: Path) -> list[Path]:
    """Where the PNG files of a report go: out.html has out-gaps.png and so on beside it."""
    return [report.with_name(f"{report.stem}-{chart.name}.png") for chart in CHARTS]


def write_report(result: Result, report: Path) -> list[Path]:
    """Write the page and the pictures; returns all their paths.  Raises ``OSError``."""
    pictures = picture_paths(report)
    write_own(report, page(result, [path.name for path in pictures]).encode())
    for chart, path in zip(CHARTS, pictures, strict=True):
        write_own(path, png(chart, result))
    return [report, *pictures]


def page(result: Result, pictures: list[str]) -> str:
    """The HTML; ``pictures`` are the names of the charts' PNG files."""
    import jinja2  # as matplotlib: for reports alone
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files(__package__).joinpath(TEMPLATE).read_text("utf-8")
    )
    charts = [
        {"chart": chart, "svg": Markup(svg(chart, result)), "file": name}
        for chart, name in zip(CHARTS, pictures, strict=True)
    ]
    return template.render(
        result=result,
        verdict=result.verdict,
        sentence=verdict_text(result),
        unlabelled=result.unlabelled_verdict,
        unlabelled_sentence=unlabelled_text(result),
        rows=rows(result),
        charts=charts,
        shown=shown,
    )
