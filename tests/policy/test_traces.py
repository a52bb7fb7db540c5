"""What agents and editors send, without labels, beside a chat that is read.

The traces are written by hand after the order and the sizes of such programs' requests; none is a
recording.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.simulated import MACHINES, play
from tests.support.traces import Trace, names
from tools import sim_run
from tools.sim_run import Result

PROCESSOR = "cpu-2core-amx-0.5b"  # on accelerators more prompts are short
NAMES = [PROCESSOR, "gpu-dense", "h200-dense", "h200-moe"]
CAP = 1.2


def p95(result: Result) -> float:
    """ms between tokens of the first request, in time of day: the last of what others ask for
    may come after it."""
    out, tokens = result.outcome, result.tokens
    gaps = out.token_gap[:tokens][out.token_job[:tokens] == 0]
    return float(np.percentile(gaps[gaps >= 0.0], 95))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trace", names())
def test_nobody_starves_the_chat_keeps_its_pace_and_lanes_are_as_expected(
    trace: str, name: str
) -> None:
    told = Trace.read(trace)
    result = play(told.load(), MACHINES[name], seconds=600.0)
    assert (result.jobs.end > 0).all(), "all have ended"
    assert not result.outcome.faults.any(), sim_run.FAULTS
    if name == PROCESSOR:
        sunk = {i: bool(result.jobs.sunk[i]) for i in told.sinking()}
        wrong = {i for i, sinks in told.sinking().items() if sunk[i] != sinks}
        late = {i for i in wrong if result.jobs.due[i] > result.jobs.end[0]}
        assert wrong == late, "what comes when nobody else is there need not sink"
    streams = max_streams(result)
    alone = p95(play(told.alone(), MACHINES[name], seconds=600.0))
    assert p95(result) <= CAP * alone * round_of(name, streams) * 1.05


def max_streams(result: Result) -> int:
    """Answers that came at once, at most."""
    jobs = result.jobs
    return max(int(((jobs.first <= at) & (at < jobs.end)).sum()) for at in jobs.first)


def round_of(name: str, streams: int) -> float:
    """How many times as long a round of so many streams is as that of one: the baseline."""
    from tools.sim_machine import tick_ms

    machine = MACHINES[name]
    one = tick_ms(machine, 0, 1, 0, 0)
    return min(streams, tick_ms(machine, 0, streams, 0, 0) / one) if streams > 1 else 1.0
