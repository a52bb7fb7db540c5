"""The report's charts and page, from a made-up run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

from tests.support.bench_results import made, samples
from umaserve.bench.report import charts, drawing
from umaserve.bench.report.page import page, picture_paths, write_report
from umaserve.bench.result import Result


@pytest.fixture(scope="module")
def result() -> Result:
    steady = [10.0 + i % 3 for i in range(400)]
    return made(steady, [1.1 * ms for ms in steady], background=2)


@pytest.fixture(scope="module")
def html(result: Result) -> str:
    return drawn_page(result, [path.name for path in picture_paths(Path("out.html"))])


def drawn_page(result: Result, names: list[str]) -> str:
    return page(result, [charts.svg(chart, result) for chart in charts.CHARTS], names)


@pytest.mark.parametrize("chart", charts.CHARTS, ids=lambda chart: chart.name)
def test_a_chart_is_vectors_with_units_and_the_pages_colours(
    chart: charts.Chart, result: Result
) -> None:
    drawn = charts.svg(chart, result)
    root = tree.fromstring(drawn)
    assert root.tag == "svg" and root.get("viewBox") and not root.get("width")
    words = [" ".join("".join(e.itertext()).split()) for e in root.iter() if e.tag == "text"]
    labels = {
        "gaps": {"time between tokens, ms", "time since the start, s"},
        "cdf": {"time between tokens, ms", "share of times that are shorter, %"},
        "tokens": {"generated tokens, /s", "time since the start, s"},
        "ticks": {"tokens a tick", "tick, ms", "time since the start, s"},
    }[chart.name]
    assert labels <= set(words)
    assert "var(--ink)" in drawn and "var(--line)" in drawn
    assert not re.search(r"\bnan\b|\binf\b", drawn)


def numbers(path: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[\d.]+", path)]


def test_what_is_drawn_lies_within_the_axes_and_higher_is_more(result: Result) -> None:
    root = tree.fromstring(charts.svg(charts.CHARTS[0], result))
    width, height = numbers(str(root.get("viewBox")))[2:]
    for path in root.iter("path"):
        places = re.findall(r"([\d.]+) ([\d.]+)", str(path.get("d")))
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)
    (cap,) = [p for p in root.iter("path") if charts.CAP in str(p.get("style"))]
    (curve,) = [p for p in root.iter("path") if p.get("stroke-width") == "2"]
    limit = numbers(str(cap.get("d")))[1]
    heights = numbers(str(curve.get("d")))[1::2]
    assert len(heights) > 10 and all(y > limit for y in heights), "1.1 times is below the cap"
    assert heights[-1] < heights[0], "the second phase was slower"


def test_a_logarithmic_scale_is_one() -> None:
    scale = drawing.Scale(1.0, 100.0, log=True)
    assert [scale.share(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0.0, 0.5, 1.0])
    assert scale.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert drawing.Scale(0.0, 21.0).ticks() == [0, 5, 10, 15, 20]


def test_the_page_needs_nothing_from_elsewhere(html: str) -> None:
    assert not re.search("https?:|[\"'(]//|@import|<script|<link|<iframe", html)
    for reference in re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', html):
        assert re.match("#", "".join(reference))
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)), "an id of one chart would hit another"
    for target in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', html):
        assert "".join(target) in ids
    assert "default-src 'none'" in html


def test_the_page_says_what_the_run_says(html: str, result: Result) -> None:
    assert "cap held" in html and "1.10 times" in html
    table = html[html.index('id="scorecard"') : html.index("</table>")]
    row = re.search(r"time between tokens, p95</th>.*?</tr>", table)
    assert row and re.findall(r"<td>([^<]*)</td>", row[0])[:3] == ["ms", "12.0", "13.2"]
    for chart in charts.CHARTS:
        assert html.count(f'<figure id="{chart.name}">') == 1
        assert f"out-{chart.name}.svg" in html
    for value in (*result.machine.values(), result.command, "interactive1"):
        assert value in html


def test_what_a_model_is_called_is_no_markup() -> None:
    result = made([10.0] * 3, [10.0] * 3)
    result.machine["model"] = "<b>&"
    result.command = "umaserve bench --report '<i>.html'"
    text = drawn_page(result, ["<a>.svg"] * 4)
    assert "&lt;b&gt;&amp;" in text and "<b>" not in text
    assert "<i>" not in text and "<a>" not in text


def test_a_run_with_hardly_anything_in_it_is_drawn(tmp_path: Path) -> None:
    result = made([], [5.0], found=samples(1))
    assert result.verdict is None
    written = write_report(result, tmp_path / "empty.html")
    assert [path.name for path in written] == [
        "empty.html", "empty-gaps.svg", "empty-cdf.svg", "empty-tokens.svg", "empty-ticks.svg",
    ]  # fmt: skip
    for path in written[1:]:  # files of their own, which show their colours without a page
        root = tree.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "--ink:" in path.read_text()
    assert "no verdict" in written[0].read_text()
