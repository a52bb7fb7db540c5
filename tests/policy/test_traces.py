"""What agents, editors and libraries send, without labels, beside a chat that is read.

The first traces are written by hand after the order and the sizes of such programs' requests; the
recorded ones are what real programs asked for.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.simulated import MACHINES, play
from tests.support.traces import RECORDED, Trace, names
from tools import sim_run
from tools.sim_run import Result

PROCESSOR = "cpu-2core-amx-0.5b"  # on accelerators more prompts are short
NAMES = [PROCESSOR, "gpu-dense", "h200-dense", "h200-moe"]
CAP = 1.2
CHAT = 1200  # tokens: most programs still ask for something when it ends
LONG, SHORT = 300, 64  # tokens of a prompt, on that processor


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trace", names(RECORDED))
def test_nobody_is_slowed_down_who_is_alone(trace: str, name: str) -> None:
    """The turns of a program that asks for one thing at a time are interactive, and as soon as
    without the rule."""
    told, machine = Trace.read(trace, RECORDED), MACHINES[name]
    result = play(told.load(), machine, seconds=600.0)
    jobs = result.jobs
    assert (jobs.end > 0).all() and not result.outcome.faults.any()
    if in_turn(told):
        assert not jobs.sunk.any()
        plain = play(told.load(), machine, machine.knobs(without=["urgency"]), seconds=600.0).jobs
        assert jobs.end.max() - jobs.due[0] <= 1.02 * (plain.end.max() - plain.due[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trace", names(RECORDED))
def test_beside_a_chat_the_short_prompts_of_real_programs_are_interactive(
    trace: str, name: str
) -> None:
    """The long ones sink, with whatever nobody reads, and the chat keeps its pace."""
    told = Trace.read(trace, RECORDED).beside_a_chat(CHAT)
    result = play(told.load(), MACHINES[name], seconds=600.0)
    jobs, rest = result.jobs, list(enumerate(told.requests))[1:]
    assert (jobs.end > 0).all() and not result.outcome.faults.any()
    beside = [(i, request) for i, request in rest if jobs.due[i] < jobs.end[0]]
    assert beside
    if name == PROCESSOR:
        assert all(jobs.sunk[i] for i, request in beside if request["prompt"] >= LONG)
    alone = p95(play(told.alone(), MACHINES[name], seconds=600.0))
    assert p95(result) <= CAP * alone * round_of(name, max_streams(result)) * 1.05


def test_short_turns_of_real_agents_are_interactive_beside_a_chat() -> None:
    short = 0
    for trace in names(RECORDED):
        told = Trace.read(trace, RECORDED).beside_a_chat(8 * CHAT)
        jobs = play(told.load(), MACHINES[PROCESSOR], seconds=600.0).jobs
        for i, request in enumerate(told.requests):
            if i and request["prompt"] <= SHORT and jobs.due[i] < jobs.end[0]:
                short += 1
                assert not jobs.sunk[i] or not request["streams"], (trace, request)
    assert short > 3


def in_turn(trace: Trace) -> bool:
    """Whether each request waits for the end of the one before."""
    return all(r.get("after") == i - 1 for i, r in enumerate(trace.requests) if i)


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
