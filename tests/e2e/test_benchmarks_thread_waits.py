"""The benchmark of waiting threads runs, and says what it is about."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import thread_waits


@pytest.mark.parametrize("other", ["quiet", "front"])
def test_one_short_run_has_every_figure(tmp_path, other):
    out = tmp_path / "runs.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.thread_waits", "--models", "demo", "--threads", "1",
         "--spins", "1000", "--others", other, "--rounds", "1", "--tries", "1",
         "--seconds", "0.05", "--out", str(out)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    (run,) = json.loads(out.read_text())
    assert run["kind"] == "libgomp 1000" and run["other"] == other
    assert 0 < run["p05_ms"] <= run["p50_ms"] <= run["p95_ms"]
    assert run["cpu_ms"] > 0 and run["others"] >= 0
    assert ("front_p50_ms" in run) is (other == "front")
    assert f"demo, 1 threads, {other}" in done.stdout and "libgomp 1000" in done.stdout


def test_the_pool_is_left_out_without_a_build_of_it():
    assert thread_waits.parser().parse_args([]).pool_cache == ""
