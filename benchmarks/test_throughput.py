"""Group 3: seconds a token through the socket, against llama-server and llama-batched-bench."""

from __future__ import annotations

import functools

import pytest

from benchmarks import throughput
from benchmarks.machine import save
from benchmarks.playback import CLOCK

pytestmark = pytest.mark.benchmark(timer=CLOCK)


@functools.cache
def result(quick: bool) -> dict:
    options = throughput.quick() if quick else throughput.parser().parse_args([])
    found = throughput.measure(options)
    if not quick:
        save(throughput.result_name(options), found)
    return found


@pytest.mark.parametrize("side", (throughput.OURS, throughput.THEIRS, throughput.LIBRARY))
@pytest.mark.parametrize("streams", (1, 2, 8, 32))
def test_throughput(play, quick: bool, streams: int, side: str) -> None:
    row = next((r for r in result(quick)["rows"] if r["streams"] == streams), None)
    if row is None:
        pytest.skip(f"{streams} streams are not measured in this mode")
    rates = row["raw_tokens_per_s"][side]
    play(f"a token at {streams} streams", [1 / rate for rate in rates], tokens_per_s=rates)
