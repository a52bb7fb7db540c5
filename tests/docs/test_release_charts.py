"""The charts of a release: from the committed results, from small ones, and incomplete ones."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="make setup-test")

from benchmarks import plots, report, timeline  # noqa: E402
from benchmarks.machine import spread  # noqa: E402
from benchmarks.timeline import Row  # noqa: E402
from tools import release_charts  # noqa: E402

pytestmark = pytest.mark.slow  # matplotlib draws
ROOT = Path(__file__).resolve().parents[2]
PAGE = (report.RESULTS / "TABLES.md").read_text(encoding="utf-8")
LINKS = (ROOT / "docs" / "notes" / "README.md").read_text(encoding="utf-8")


def words(path: Path) -> str:
    """All text of an SVG, a line each."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"<[^>]+>", " ", text) for text in found]
    return html.unescape("\n".join(" ".join(line.split()) for line in lines))


def flat(text: str) -> str:
    """Without line breaks: a footer is folded."""
    return " ".join(text.split())


# --- the committed results ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("charts")
    release_charts.main(["--out", str(out), "--formats", "svg"])
    return out


def test_every_mixed_and_overhead_result_is_in_a_chart(drawn: Path) -> None:
    whole = flat("\n".join(words(path) for path in sorted(drawn.glob("*.svg"))))
    used = 0
    for name, result in report.read_results().items():
        kind = name.split("-", 1)[0]
        if kind not in ("mixed", "one_stream", "tick", "throughput"):
            continue
        used += 1
        command = release_charts.command(kind, name, result)
        assert command in whole and f"`{command}`" in PAGE
        assert result["machine"]["cpu"] in whole and result["machine"]["date"] in whole
        assert f"umaserve {result['machine']['commit'] or '(commit not recorded)'}" in whole
    assert used >= 2
    assert "Mixed load: three interactive streams and one long job" in whole
    assert "Overhead: what serving costs beyond the decode" in whole
    assert "Throughput, prompts included" in whole and "Time between tokens, p95" in whole


def test_the_committed_charts_are_those_of_the_results(drawn: Path) -> None:
    """Titles, commands, machines and commits; not the curves, which another matplotlib may draw
    in another way."""
    committed = ROOT / "docs" / "charts"
    names = {path.name for path in drawn.glob("*.svg")}
    assert {path.name for path in committed.glob("*.svg")} == names, (
        "python -m tools.release_charts"
    )
    for name in names:
        assert (committed / name).stat().st_size < 200_000
        assert f"(../charts/{name})" in LINKS
        ours, now = flat(words(committed / name)), flat(words(drawn / name))
        parts = re.findall(r"python -m [^;]+; measured [^;]+;", now)
        assert parts and all(part in ours for part in parts), "python -m tools.release_charts"


# --- small results --------------------------------------------------------------------------------

MACHINE = {
    "cpu": "Testing 9000", "cores": 3, "accelerator": None, "system": "Linux 1.2.3",
    "python": "3.11.7", "backend": "cpu", "llama": "9.9 (abc)", "commit": "0ff1ce5",
    "numpy": "2", "numba": "0.1", "trio": "0.2", "msgspec": "0.3", "date": "2031-02-03 04:05",
    "load_before": 0.5,
}  # fmt: skip
OURS, THEIRS = "umaserve", "llama-server"


def both(ours: float, theirs: float, **more: float) -> dict[str, Any]:
    return {side: spread([v]) for side, v in {OURS: ours, THEIRS: theirs, **more}.items()}


def mixed_result() -> dict[str, Any]:
    return {
        "machine": MACHINE, "benchmark": "mixed", "label": "tiny", "model": "tiny q8_0",
        "rounds": 3, "scale": 1.0, "document_tokens": 777,
        "figures": {
            "three_p95_ms": both(11.5, 12.5), "mixed_p95_ms": both(13, 625, separate=88),
            "p95_ratio": both(1.13, 50), "three_tokens_per_s": both(300, 200),
            "mixed_tokens_per_s": both(250, 20, separate=30), "rss": both(1.5e9, 1.25e9),
            "pss": both(0.5e9, 0.25e9), "first_alone_ms": both(41, 51),
            "first_meeting_ms": both(61, 5100), "first_ratio": both(1.49, 100),
        },
    }  # fmt: skip


def overhead_results() -> dict[str, dict[str, Any]]:
    base = {"machine": MACHINE, "model": "tiny q8_0", "threads": 2}
    return {
        "one_stream": {
            **base, "prompt_tokens": 16, "first_token_ms": both(6, 8),
            "first_token_ratio": spread([0.75]), "cpu_s_per_1k_tokens": both(4, 5),
            "cpu_ratio": spread([0.8]), "wire_bytes_per_token": both(60, 120),
            "system_calls_per_token": {OURS: None, THEIRS: None}, "copied_bytes_per_token": 0.0,
            "tokens_per_s": both(300, 200), "tokens_per_s_ratio": spread([1.5]),
        },
        "tick": {
            **base, "copied_bytes_per_token": 0.0,
            "rows": [
                {"sessions": n, "period_ms": spread([10.0]), "decode_ms": spread([9.5]),
                 "overhead_us": spread([500.0]), "sampling_us": spread([300.0]),
                 "share": spread([0.05]), "share_of_total": 0.06}
                for n in (1, 8)
            ],
        },
        "throughput-tiny": {
            **base, "tokens": 32, "prompt_tokens": 16, "turns": "interleaved",
            "rows": [
                {"streams": n, "tokens_per_s": both(432.0 * n, 234.0 * n),
                 "ours_over": {THEIRS: spread([1.8])}, "cpu_s_per_1k": both(1.5, 2.5)}
                for n in (1, 8)
            ],
        },
    }  # fmt: skip


def kv_results() -> dict[str, dict[str, Any]]:
    def tick(rows: int, prompt: int, depth: int) -> dict[str, Any]:
        return {"rows": rows, "prompt": prompt, "estimate_mb": 100 + rows * depth / 100,
                "ms": 10 + depth / 1000}  # fmt: skip

    return {
        f"bmt-{depth}": {
            "machine": MACHINE, "model": "tiny q8_0", "threads": 2, "depth": depth,
            "probe_gbps": 12.0, "traffic": {"kv_cell": 12288.0},
            "ticks": [tick(1, 0, depth), tick(4, 0, depth), tick(1, 16, depth)],
        }
        for depth in (1024, 16384)
    }  # fmt: skip


def kv_types_result() -> dict[str, Any]:
    kinds = [("f16", "token-major", 7.125), ("q8:f16", "head-major", 7.25)]
    rows = [
        {"kv_type": kv_type, "kv_pack": pack, "cells": cells, "gbps": 3.0, "kv_mb": 1.5,
         "tokens_per_s": spread([20.0]), "over_first": spread([1.0]), "mb_per_token": 9.0}
        for kv_type, pack, _ in kinds
        for cells in (512, 4096)
    ]  # fmt: skip
    lost = [
        {"kv_type": kv_type, "kv_pack": pack, "perplexity": value, "over_first": value / 7.125}
        for kv_type, pack, value in kinds
    ]
    return {
        "machine": MACHINE, "benchmark": "kv_types", "model": "tiny q8_0", "rounds": 3,
        "threads": 2, "ticks": 4, "cells": [512, 4096], "types": "f16,q8",
        "packs": "token-major,head-major", "rows": rows, "perplexity_tokens": 2048,
        "perplexity": lost,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of results from which all four charts can be made."""
    made = tmp_path / "results"
    made.mkdir()
    everything = {"mixed-tiny": mixed_result(), **overhead_results(), **kv_results()}
    everything["kv_types-tiny"] = kv_types_result()
    for name, result in everything.items():
        (made / f"{name}.json").write_text(json.dumps(result))
    rows = [
        Row(side, 0, phase, f"stream{s}.0", i, gap * i + s, True)
        for side, gap in ((OURS, 10.0), (THEIRS, 25.0))
        for phase in ("three", "mixed")
        for s in range(3)
        for i in range(30)
    ]
    timeline.write_csv(made / "mixed-tiny.csv.gz", rows)
    yield made


def make(folder: Path, out: Path, *more: str) -> int:
    return release_charts.main(["--results", str(folder), "--out", str(out), *more])


def test_four_charts_in_both_formats(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "a" / "b"
    assert make(folder, out) == 0
    names = ["kv_sweep-tiny", "kv_types-tiny", "mixed-tiny", "overhead-tiny"]
    assert sorted(p.name for p in out.iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    )
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("\n") == 4
    for name in names:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        seen = flat(words(out / f"{name}.svg"))
        for part in ("tiny q8_0 on Testing 9000, 3 cores", "measured 2031-02-03 04:05 UTC",
                     "umaserve 0ff1ce5"):  # fmt: skip
            assert part in seen, (name, part)


def test_what_the_charts_say(folder: Path, tmp_path: Path) -> None:
    assert make(folder, tmp_path, "--formats", "svg") == 0
    mixed = words(tmp_path / "mixed-tiny.svg")
    for part in (
        "python -m benchmarks.mixed --model tiny --label tiny", "3 rounds at 1 of the full length",
        "prompts of 777 tokens", "Interactive tokens, with the long job", "seconds", "ms", "GB",
        "tokens/s", "4 llama-servers", "umaserve × 1.13, llama-server × 50", "625", "88", "1.25",
    ):  # fmt: skip
        assert part in mixed, part
    overhead = words(tmp_path / "overhead-tiny.svg")
    for part in (
        "python -m benchmarks.one_stream", "python -m benchmarks.tick",
        "--streams 1,8 --tokens 32 --threads 2 --name throughput-tiny", "0.75: 6 to 8 ms",
        "0.50: 60 to 120 bytes", "5.0% of 10 ms", "3,456", "µs a tick, medians",
        "CPU s for 1000 tokens", "logits copied by our code: 0 bytes a token",
    ):  # fmt: skip
        assert part in overhead, part
    assert "system calls" not in overhead, "it was not measured"
    sweep = words(tmp_path / "kv_sweep-tiny.svg")
    for part in (
        "Long context: what KV cells cost", "KV cells of each stream", "1,024", "16,384",
        "4 streams", "1 stream", "MB moved for a token (ΣBMT estimate)", "12,288", "12 GB/s",
        'python -m benchmarks.bmt --model tiny --quant q8_0 --rows 1,4 --prompts "16" '
        "--depth 1024 --threads 2 --name bmt-1024",
    ):  # fmt: skip
        assert part in flat(sweep), part
    types = words(tmp_path / "kv_types-tiny.svg")
    for part in (
        "KV types: one stream deep in its context", "One stream, tokens/s", "512", "4096",
        "MB moved for a token (ΣBMT estimate)", "q8:f16, head-major", "3 rounds; umaserve",
        "over 2048 tokens: f16, token-major 7.1250; q8:f16, head-major 7.2500",
        "python -m benchmarks.kv_types --model tiny --cells 512,4096 --types f16,q8",
    ):  # fmt: skip
        assert part in flat(types), part


def test_the_same_results_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        assert make(folder, tmp_path / out, "--formats", "svg") == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("gone", "says", "left"),
    [
        ("mixed-*", "no mixed load.*python -m benchmarks.mixed",
         {"kv_sweep", "kv_types", "overhead"}),
        ("bmt-1024*", "no long-context KV sweep.*python -m benchmarks.bmt .*--depth",
         {"mixed", "kv_types", "overhead"}),
        ("kv_types*", "no KV types.*python -m benchmarks.kv_types",
         {"mixed", "kv_sweep", "overhead"}),
        ("tick*", "overhead without tick.*python -m benchmarks.tick",
         {"mixed", "kv_sweep", "kv_types", "overhead"}),
        ("[ot]*", "no overhead: .*make bench", {"mixed", "kv_sweep", "kv_types"}),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_and_the_rest_is_made(
    folder: Path, tmp_path: Path, capsys: Any, gone: str, says: str, left: set[str]
) -> None:
    for path in folder.glob(f"{gone}.json"):
        path.unlink()
    assert make(folder, tmp_path / "out", "--formats", "svg") == 1
    assert re.search(says, capsys.readouterr().err)
    assert {p.name.split("-")[0] for p in (tmp_path / "out").iterdir()} == left


def test_a_model_measured_in_part_gets_the_panels_there_are(folder: Path, tmp_path: Path) -> None:
    other = overhead_results()["tick"] | {"model": "other q8_0"}
    (folder / "tick-other.json").write_text(json.dumps(other))
    assert make(folder, tmp_path, "--formats", "svg") == 0
    seen = words(tmp_path / "overhead-other.svg")
    assert "Outside llama_decode" in seen and "Throughput" not in seen


def test_a_model_of_two_machines_gets_a_chart_of_each(folder: Path, tmp_path: Path) -> None:
    result = json.loads((folder / "one_stream.json").read_text())
    result["machine"]["cpu"] = "Another One"
    (folder / "one_stream.json").write_text(json.dumps(result))
    assert make(folder, tmp_path, "--formats", "svg") == 0
    assert "Another One" not in words(tmp_path / "overhead-tiny.svg")
    other = words(tmp_path / "overhead-tiny-2.svg")
    assert "Another One" in other and "Outside llama_decode" not in other


def test_broken_files_are_named_and_stop_nothing(folder: Path, tmp_path: Path, capsys: Any) -> None:
    (folder / "tick-broken.json").write_text("{")
    (folder / "mixed-old.json").write_text(json.dumps({"machine": MACHINE, "model": "old q8_0"}))
    old = overhead_results()["throughput-tiny"] | {"rows": [{"streams": 1}], "model": "old q8_0"}
    (folder / "throughput-old.json").write_text(json.dumps(old))
    (folder / "mixed-tiny.csv.gz").write_bytes(b"no gzip")
    assert make(folder, tmp_path / "out", "--formats", "svg") == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for name in ("tick-broken.json", "mixed-old.json", "throughput-old.json", "mixed-tiny.csv.gz"):
        assert len(re.findall(rf"^{re.escape(name)} .*make it again", said, re.M)) == 1, said
    names = {path.stem for path in (tmp_path / "out").iterdir()}
    assert names == {"mixed-tiny", "overhead-tiny", "kv_sweep-tiny", "kv_types-tiny"}
    assert "tokens so far" not in words(tmp_path / "out" / "mixed-tiny.svg")


def test_options_and_libraries_that_are_not_there(
    folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    for wrong in (["--formats", "svg,gif"], ["--results", str(tmp_path / "nowhere")]):
        with pytest.raises(SystemExit) as left:
            make(folder, tmp_path, *wrong)
        assert left.value.code == 2
    said = capsys.readouterr().err
    assert "svg, png" in said and "is no folder" in said
    monkeypatch.setattr(plots, "pyplot", lambda: None)
    assert make(folder, tmp_path / "out") == 2
    assert "make setup-test" in capsys.readouterr().err


# --- pieces ---------------------------------------------------------------------------------------


@pytest.fixture
def axis() -> Iterator[Any]:
    pyplot = plots.pyplot()
    assert pyplot is not None
    figure, axis = pyplot.subplots()
    yield axis
    pyplot.close(figure)


def test_a_side_that_stands_still_is_a_level_line_to_the_end(axis: Any) -> None:
    rows = [Row(OURS, 0, "p", "s.0", i, 100.0 * i, True) for i in range(1, 11)]
    rows += [Row(THEIRS, 0, "p", "s.0", 1, 50.0, True), Row(THEIRS, 0, "p", "d.0", 1, 60.0, False)]
    plots.tokens_so_far(axis, rows, "p")
    ours, theirs = ((list(x), list(y)) for x, y in (line.get_data() for line in axis.lines))
    assert (ours[0][-1], ours[1][-1]) == (1.0, 10)
    assert theirs == ([0.0, 0.05, 1.0], [0, 1, 1]), "the background token does not count"


def test_bars_of_what_was_measured(axis: Any) -> None:
    sides = {OURS: [spread([1.0, 2.0, 9.0]), None], THEIRS: [spread([4.0]), spread([5.0])]}
    plots.bars(axis, sides, ["a", "b"])
    assert sorted(bar.get_height() for bar in axis.patches) == [2.0, 4.0, 5.0]
    assert len(axis.lines) == 1, "a line from p10 to p90 where there were several rounds"
    assert [text.get_text() for text in axis.texts] == ["2", "4", "5"]
