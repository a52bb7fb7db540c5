"""The benchmark of drafts runs, and each answer is the text that it was to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import drafts
from benchmarks.names import OURS

pytestmark = pytest.mark.slow

SHORT = ["--model", "demo", "--without-peer", "--streams", "1,2", "--words", "30", "--answer", "80",
         "--rounds", "1", "--threads", "1", "--flags", "--speculate ngram"]  # fmt: skip


def test_one_short_run_has_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMA_BENCH_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["drafts", *SHORT])
    drafts.main()
    result = json.loads((tmp_path / "drafts-demo.json").read_text())
    assert [(row["texts"], row["streams"]) for row in result["rows"]] == [
        (texts, streams) for streams in (1, 2) for texts in ("copies", "pieces", "plain")
    ]  # fmt: skip
    for row in result["rows"]:
        found = row["figures"]
        assert set(found["tokens_per_s"]) == {OURS, f"{OURS}, no drafts"}
        assert all(each["median"] > 0 for each in found["tokens_per_s"].values())
        assert found["tokens_per_tick"][f"{OURS}, no drafts"]["median"] == 1
        assert row["with_over_without"]["tokens_per_s"][OURS]["n"] == 1
    assert (tmp_path / "drafts-demo.csv.gz").stat().st_size > 100
    assert "drafts right" in capsys.readouterr().out
