"""Group 2: what a tick costs beside ``llama_decode``."""

from __future__ import annotations

import functools

import pytest

from benchmarks import tick
from benchmarks.machine import save
from benchmarks.playback import CLOCK

pytestmark = pytest.mark.benchmark(timer=CLOCK)


@functools.cache
def result(quick: bool) -> dict:
    found = tick.measure(tick.quick() if quick else tick.parser().parse_args([]))
    if not quick:
        save("tick", tick.without_times(found))
    return found


@pytest.mark.parametrize("part", ("the whole tick", "inside llama_decode", "outside"))
@pytest.mark.parametrize("sessions", (1, 2, 4, 8, 32))
def test_tick(play, quick: bool, sessions: int, part: str) -> None:
    row = next((r for r in result(quick)["rows"] if r["sessions"] == sessions), None)
    if row is None:
        pytest.skip(f"{sessions} sessions are not measured in this mode")
    play(f"tick at {sessions} sessions", row["seconds"][part], share=row["share"]["median"])
