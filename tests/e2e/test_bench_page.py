"""The report's charts and page, from a made-up run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

from tests.support.bench_results import made, samples
from umaserve.bench import charts
from umaserve.bench.page import page, picture_paths, write_report
from umaserve.bench.result import Result

pytest.importorskip("matplotlib", reason="pip install 'umaserve[bench]'")


@pytest.fixture(scope="module")
def result() -> Result:
    steady = [10.0 + i % 3 for i in range(400)]
    return made(steady, [1.1 * ms for ms in steady], background=2)


@pytest.fixture(scope="module")
def html(result: Result) -> str:
    return page(result, [path.name for path in picture_paths(Path("out.html"))])


@pytest.mark.parametrize("chart", charts.CHARTS, ids=lambda chart: chart.name)
def test_a_chart_is_vectors_with_units_and_the_pages_colours(
    chart: charts.Chart, result: Result
) -> None:
    drawn = charts.svg(chart, result)
    root = tree.fromstring(drawn.replace("xlink:href", "href"))
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
    assert not re.search("#0[1-3]0[2-4]0[3-5]", drawn)


@pytest.mark.parametrize("chart", charts.CHARTS, ids=lambda chart: chart.name)
def test_a_picture_is_a_png_of_readable_size(chart: charts.Chart, result: Result) -> None:
    data = charts.png(chart, result)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width >= 1200 and height >= 500


def test_the_page_needs_nothing_from_elsewhere(html: str) -> None:
    assert not re.search("https?:|[\"'(]//|@import|<script|<link|<iframe", html)
    for reference in re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', html):
        assert re.match("#|data:image/png;base64,", "".join(reference))
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)), "an id of one chart would hit another"
    for target in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', html):
        assert "".join(target) in ids
    assert "default-src 'none'" in html


def test_the_page_says_what_the_run_says(html: str, result: Result) -> None:
    assert "cap held" in html and "1.10 times" in html
    table = html[html.index('id="scorecard"') : html.index("</table>")]
    row = re.search(r"time between tokens, p95</th>.*?</tr>", table)
    assert row and re.findall(r"<td>([^<]*)</td>", row[0])[:2] == ["12.0", "13.2"]
    for chart in charts.CHARTS:
        assert html.count(f'<figure id="{chart.name}">') == 1
        assert f"out-{chart.name}.png" in html
    for value in (*result.machine.values(), result.command, "interactive1"):
        assert value in html


def test_what_a_model_is_called_is_no_markup() -> None:
    result = made([10.0] * 3, [10.0] * 3)
    result.machine["model"] = "<b>&"
    result.command = "umaserve bench --report '<i>.html'"
    text = page(result, ["<a>.png"] * 4)
    assert "&lt;b&gt;&amp;" in text and "<b>" not in text
    assert "<i>" not in text and "<a>" not in text


def test_a_run_with_hardly_anything_in_it_is_drawn(tmp_path: Path) -> None:
    result = made([], [5.0], found=samples(1))
    assert result.verdict is None
    written = write_report(result, tmp_path / "empty.html")
    assert [path.name for path in written] == [
        "empty.html", "empty-gaps.png", "empty-cdf.png", "empty-tokens.png", "empty-ticks.png",
    ]  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in written)
    assert "no verdict" in written[0].read_text()
