"""``umaserve bench`` with a daemon of its own: its files, and its page in a real browser."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.fixtures.commands import environment
from umaserve.assets import demo_model_path

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"UMA_THREADS": "1", "UMA_BACKEND": "cpu"}


# packages of the tests that nobody has who installed as README says
WITHOUT_EXTRAS = (
    "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'jinja2', 'psutil'))); "
    "from umaserve.cli import main; sys.exit(main(sys.argv[1:]))"
)


class Run(NamedTuple):
    """A finished run: its exit status, what it printed, and its files."""

    status: int
    out: str
    err: str
    folder: Path

    def json(self) -> dict[str, Any]:
        return json.loads((self.folder / "out.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("bench")
    with tempfile.TemporaryDirectory(prefix="bench-test-") as temporary:
        yield measured(folder, Path(temporary))


def measured(folder: Path, temporary: Path) -> Run:
    files = ["--report", "out.html", "--json", "out.json", "--csv", "out.csv"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, "bench", "--model", str(demo_model_path()),
         "--seconds", "1", "--background", "2", "--prompt-words", "60", *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=290,  # a first start ever compiles
        stdin=subprocess.DEVNULL,
        env=environment(PYTHONPATH=str(ROOT), TMPDIR=str(temporary), **SETTINGS),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2, 4), done.stderr
    assert not list(temporary.iterdir()), "the daemon's folder is gone"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert str(temporary) not in " ".join(process.cmdline()), "the daemon is gone"
    return Run(done.returncode, done.stdout, done.stderr, folder)


def test_it_tells_every_stage_and_ends_in_a_table_and_a_verdict(finished: Run) -> None:
    stages = re.findall(r"^bench: (\S.*?)(?: \(.*\))?$", finished.err, re.M)
    assert stages == [
        "the machine", "starting a daemon", "warming up", "interactive alone",
        "with background", "first tokens",
        "without labels", "a desk", "drawing the report",
    ]  # fmt: skip
    lines = finished.out.strip().splitlines()
    verdict = {0: "cap held: ", 4: "CAP MISSED: ", 2: "no verdict, others use these cores: "}
    assert lines[0].startswith(verdict[finished.status])
    assert max(map(len, lines[lines.index("") : -1])) <= 80
    assert re.search(r"^time between tokens, p95, ms( +\d[\d.,]*){5}$", finished.out, re.M)
    # a dash where too little came in so short a phase
    desk = re.findall(r"^desk: (.*), ×( +-){2}( +\d[\d.,]*| +-)( +-){2}$", finished.out, re.M)
    assert [row[0] for row in desk] == [
        "chat's gap p50", "chat's gap p95", "chat's longest gap", "editor's completion p50",
        "agent's first token p50",
    ]  # fmt: skip
    assert {name for name, _, value, _ in desk if value.strip() != "-"} >= {
        "chat's gap p95", "chat's longest gap",
    }  # fmt: skip
    # who else uses the cores is the machine's matter; all other notes would be wrong
    notes = [
        n for n in finished.json()["notes"]
        if "waited for a processor" not in n and not n.startswith("Others use these cores")
    ]  # fmt: skip
    assert not [n for n in notes if not n.startswith("One phase has only")]


def rank95(ordered: list[float]) -> float:
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def test_the_verdict_follows_from_the_csv(finished: Run) -> None:
    told = finished.json()
    rows = list(csv.DictReader(io.StringIO((finished.folder / "out.csv").read_text())))
    assert list(rows[0]) == ["session_id", "token_idx", "ts_ms", "is_interactive"]
    times: dict[str, list[float]] = {}
    for row in rows:
        if row["is_interactive"] == "1":
            times.setdefault(row["session_id"], []).append(float(row["ts_ms"]))
    p95 = {}
    for name, phase in told["phases"].items():
        begin, end = phase["begin_ms"], phase["end_ms"]
        assert 1000 <= end - begin <= 10_000
        gaps = sorted(
            b - a
            for own in times.values()
            for a, b in zip(own, own[1:], strict=False)
            if begin < b <= end
        )
        # silences that go on when a phase ends are not in the file: at most one a stream
        extra = phase["gaps"] - len(gaps)
        assert 0 <= extra <= 3
        p95[name] = phase["p95_ms"]
        assert rank95([0.0] * extra + gaps) - 0.01 <= p95[name]
        assert p95[name] <= rank95(gaps + [math.inf] * extra) + 0.01
    assert told["verdict"]["ratio"] == pytest.approx(p95["mixed"] / p95["alone"], abs=0.006)
    assert told["verdict"]["held"] == (told["verdict"]["ratio"] <= told["verdict"]["cap"])
    missed = 2 if told["machine"]["used_by_others_pct"] > 10 else 4
    assert finished.status == (0 if told["verdict"]["held"] else missed)
    assert told["verdict"]["cap"] == told["last_minute"]["daemon"]["latency_cap"] == 1.2


def test_client_and_daemon_count_the_same_work(finished: Run) -> None:
    told = finished.json()
    client, daemon = told["last_minute"]["client"], told["last_minute"]["daemon"]
    rows = (finished.folder / "out.csv").read_text().splitlines()[1:]
    # the daemon was asked before these came
    later = ("unlabelled", "storm", "chat", "editor", "agent", "documents", "probe")
    assert {row.split(",")[3] for row in rows if row.startswith(later[0])} == {"1"}
    assert {row.split(",")[3] for row in rows if row.startswith(later[1])} == {"0"}
    rows = [row for row in rows if not row.startswith(later)]
    # what the daemon had sent when its streams were closed, nobody read any more
    assert 0 <= daemon["tokens_generated_total"] - len(rows) <= 200
    assert client["tokens_per_s"] == pytest.approx(daemon["tokens_per_s"], rel=0.1)
    sessions = {row.split(",")[0] for row in rows}
    assert {"interactive1.1", "interactive2.1", "interactive3.1", "short1.1"} <= sessions
    ids = {name.split(".")[0] for name in sessions}
    assert daemon["requests_total"] >= len(sessions) and len(ids) >= 4 + 2
    assert daemon["cached_tokens_total"] == 0
    first = [told["phases"][name]["own_first_tokens_ms"] for name in ("alone", "mixed")]
    assert [len(times) for times in first] == [4, 4]
    ticks = told["ticks"]
    assert ticks and sum(t["decode"] > 0 for t in ticks) >= 3
    assert any(t["prompt"] + t["aside"] > 0 for t in ticks)
    machine = told["machine"]
    assert machine["model"] == "UMA Serve demo" and machine["backend"] == "cpu"
    assert machine["threads"] == 1 and told["own_daemon"] is True


def test_all_files_of_the_report_are_there(finished: Run) -> None:
    names = [f"out-{name}.svg" for name in ("gaps", "cdf", "tokens", "ticks")]
    assert sorted(p.name for p in finished.folder.glob("out*")) == sorted(
        ["out.csv", "out.html", "out.json", *names]
    )
    assert finished.out.splitlines()[-1] == " ".join(["written: out.json out.csv out.html", *names])
    html = (finished.folder / "out.html").read_text()
    assert not re.search("https?:", html)
    assert len(html) < 3_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


CHARTS = """
[...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const shapes = [...svg.querySelectorAll('path, rect')].filter(e => {
    const own = e.getBoundingClientRect();
    return own.width + own.height > 0;
  });
  const labels = [...svg.querySelectorAll('text')].filter(e => e.getBBox().width > 0);
  return {
    name: svg.closest('figure').id, shapes: shapes.length, labels: labels.length,
    x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height,
    ink: getComputedStyle(svg.querySelector('text')).fill,
  };
})
"""


def test_a_browser_without_a_network_shows_the_charts(
    finished: Run, browser: Browser, tmp_path: Path
) -> None:
    browser.call("Page.enable")
    browser.call("Network.enable")
    browser.call("Log.enable")
    browser.call("Runtime.enable")
    browser.call(
        "Network.emulateNetworkConditions",
        offline=True, latency=0, downloadThroughput=0, uploadThroughput=0,
    )  # fmt: skip
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=1100, height=900, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    ink, paper = {}, {}
    for scheme in ("light", "dark"):
        browser.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        browser.events.clear()
        browser.call("Page.navigate", url=(finished.folder / "out.html").as_uri())
        browser.wait("Page.loadEventFired")
        assert browser.value("document.querySelectorAll('#scorecard tbody tr').length") > 15
        charts = browser.value(CHARTS)
        assert [chart["name"] for chart in charts] == ["gaps", "cdf", "tokens", "ticks"]
        browser.picture(tmp_path / f"report-{scheme}.png")
        for chart in charts:
            assert chart["shapes"] > 4 and chart["labels"] > 10, chart
            assert chart["width"] > 900 and chart["height"] > 300, chart
            clip = {name: chart[name] for name in ("x", "y", "width", "height")}
            picture = tmp_path / f"{chart['name']}-{scheme}.png"
            browser.picture(picture, clip={**clip, "scale": 1})
            check_colours(picture, chart["name"])
        ink[scheme] = {chart["ink"] for chart in charts}
        paper[scheme] = browser.value("getComputedStyle(document.body).backgroundColor")
        asked = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert asked and all(re.match("file:", url) for url in asked)
        said = [
            e
            for e in browser.events
            if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]
        assert said == [], "the browser complains of nothing"
    assert ink["light"] == {"rgb(27, 31, 36)"} and ink["dark"] == {"rgb(228, 232, 238)"}
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"}


def check_colours(picture: Path, name: str) -> None:
    """The chart's own colours are to be seen, each in more than a speck."""
    import numpy as np
    from PIL import Image

    from umaserve.bench.report import charts

    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    paper = pixels[2, 2]
    wanted = {
        "gaps": ((charts.STREAMS[2], 1.0), (charts.CAP, 1.0)),
        "cdf": ((charts.ALONE, 1.0), (charts.MIXED, 1.0), (charts.CAP, 1.0)),
        "tokens": ((charts.MIXED, 0.75),),
        "ticks": ((charts.MIXED, 0.75), (charts.STREAMS[2], 1.0), (charts.STREAMS[3], 1.0)),
    }[name]
    for colour, opacity in wanted:
        pure = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        shown = opacity * pure + (1 - opacity) * paper
        near = np.abs(pixels - shown).max(axis=2) < 24
        assert near.sum() > (5000 if name == "tokens" else 60), (name, colour)
