"""The simulator, and the policy's promises in simulated time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated import MACHINES, gaps_ms, play, quiet
from tools import sim_beside, sim_run
from tools.sim_loads import BACKGROUND, INTERACTIVE, PRESETS, Load, agent, mixed, storm
from tools.sim_machine import probed, tick_ms
from tools.simulate import figures, main
from umaserve.policy.base import FEATURES
from umaserve.policy.cost.model import FADED, MOST_SURE, CostModel, prompt_class
from umaserve.policy.cost.prediction import predict


def test_a_stream_alone_takes_what_the_machine_takes():
    machine = quiet("gpu-dense")._replace(kv_ms=0.0)
    load = Load()
    load.add(INTERACTIVE, 10, 50)
    result = play(load, machine)
    assert result.tokens == 50
    assert gaps_ms(result, INTERACTIVE) == pytest.approx(tick_ms(machine, 0, 1, 0, 0), rel=1e-4)


def test_a_client_sends_its_next_request_after_thinking():
    machine = quiet("gpu-dense")
    load = Load()
    load.chain(3, INTERACTIVE, 10, 5, start_ms=100.0, think_ms=70.0)
    jobs = play(load, machine).jobs
    assert jobs.due[0] - sim_run.START_NS == 100 * sim_beside.NS
    assert (jobs.due[1:] - jobs.end[:-1] == 70 * sim_beside.NS).all()


def test_the_probe_knows_the_machine():
    for name in MACHINES:
        machine = quiet(name)
        cost = probed(machine)
        assert predict(cost, 0, 1, 0, 32) == pytest.approx(tick_ms(machine, 0, 1, 0, 32), rel=0.02)


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("load", sorted(set(PRESETS) - {"crowd"}))
def test_no_plan_is_at_fault(name, load):
    machine = MACHINES[name]
    result = play(PRESETS[load](), machine, seconds=20.0)
    assert result.tokens > 0
    faults = dict(zip(sim_run.FAULTS, result.outcome.faults.tolist(), strict=True))
    assert not any(faults.values()), faults


@st.composite
def loads(draw):
    load = Load()
    for _ in range(draw(st.integers(1, 12))):
        load.add(
            draw(st.sampled_from([INTERACTIVE, BACKGROUND])),
            draw(st.integers(1, 700)), draw(st.integers(1, 60)), draw(st.floats(0, 2000)),
            draw(st.integers(-1, load.size - 1)), draw(st.sampled_from([0.0, 0.0, 1.05, 3.0])),
            draw(st.sampled_from([0, 0, 0, 1])),
        )  # fmt: skip
    return load


@given(
    loads(), st.sampled_from(sorted(MACHINES)), st.booleans(), st.sampled_from([0, 1, 3]),
    st.sampled_from([8, 64, 2048]), st.sampled_from([1500, 16384]), st.sampled_from([1, 4, 32]),
    st.sets(st.sampled_from(sorted(FEATURES)), max_size=3), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=150)
def test_every_request_ends_and_no_plan_is_at_fault(
    load, name, cold, max_merge, n_batch, n_ctx, n_seq, without, random_seed
):
    machine = MACHINES[name]
    told = machine.knobs(without=without, n_batch=n_batch, max_merge=max_merge)
    cost = CostModel.unknown() if cold else probed(machine)
    result = sim_run.simulate(
        load, machine, told, cost, n_slots=16, n_seq=n_seq, n_ctx=n_ctx, most_ticks=200_000,
        random_seed=random_seed,
    )  # fmt: skip
    faults = dict(zip(sim_run.FAULTS, result.outcome.faults.tolist(), strict=True))
    assert not any(faults.values()), faults
    assert (result.jobs.end > 0).all(), "a request never ended"
    assert result.tokens == sum(load.output)


@pytest.mark.parametrize("name", ["gpu-dense", "gpu-moe"])
@pytest.mark.parametrize("load", [storm, mixed, agent])
def test_interactive_streams_keep_their_pace(name, load):
    machine = MACHINES[name]._replace(outliers=0.0)
    told = machine.knobs()
    answer = figures(load(), machine, told, seconds=60.0)
    assert answer["interactive"]["p95 x"] <= 1.2 * 1.03


def test_background_gets_on_beside_streams():
    machine = MACHINES["gpu-moe"]
    result = play(storm(2, tokens=3000), machine, seconds=20.0)
    assert result.outcome.longest_idle[BACKGROUND] < 1500.0


def test_without_the_guard_the_cap_does_not_hold():
    machine = MACHINES["gpu-dense"]._replace(outliers=0.0)
    told = machine.knobs(without=["latency-guard"])
    assert figures(storm(), machine, told, seconds=20.0)["interactive"]["p95 x"] > 2.0


def test_slices_compute_more_prompts_and_the_stream_keeps_its_pace():
    machine = quiet("cpu-2core-amx-0.5b")
    rates = {}
    for without in ((), ("slices",)):
        result = play(storm(tokens=10_000), machine, machine.knobs(without=without), seconds=20.0)
        totals = result.outcome.totals
        prompts = totals[sim_beside.ASIDE_TOKENS] + totals[sim_beside.STREAM_PROMPT]
        rates[without] = 1000.0 * prompts / totals[sim_beside.STREAM_MS]
        gaps = gaps_ms(result, INTERACTIVE)
        assert np.percentile(gaps, 95) < 1.22 * tick_ms(machine, 0, 1, 0, 300)
    assert rates[()] > 1.2 * rates["slices",] and rates[()] > 60.0


def test_the_same_seed_plays_the_same():
    machine = MACHINES["gpu-moe"]
    a, b = (play(mixed(), machine, seconds=5.0) for _ in range(2))
    assert np.array_equal(a.outcome.token_ns, b.outcome.token_ns)


def test_the_command_prints_figures(capsys):
    assert main(["--machine", "gpu-dense", "--load", "paste", "--seconds", "5"]) == 0
    text = capsys.readouterr().out
    assert "p95 ms" in text
    assert "FAULT" not in text


@pytest.mark.parametrize(
    ("name", "shape", "factor"), [("gpu-dense", 4, 3.0), ("cpu-2core-0.5b", 1, 1.8)]
)
def test_what_was_learned_beside_another_program_is_learned_again(name, shape, factor):
    """Merging that seemed slow is tried again (GPU), and so is taking turns (processor)."""
    machine, load = quiet(name), Load()
    for _ in range(4):
        load.add(BACKGROUND, 20, 3000)
    right = sim_run.simulate(load, machine, machine.knobs(), probed(machine), seconds=60.0)
    cost = probed(machine)
    cost.mean[0, shape, 0] *= factor
    cost.count[0, shape, 0] = MOST_SURE
    assert predict(cost, 0, 4, 0, 0) > 2 * predict(cost, 0, 2, 0, 0) or shape == 1
    found = sim_run.simulate(load, machine, machine.knobs(), cost, seconds=60.0)
    expected = predict(right.cost, 0, shape, 0, 0)
    assert predict(found.cost, 0, shape, 0, 0) == pytest.approx(expected, rel=0.25)
    assert found.tokens > 0.7 * right.tokens


def test_costs_of_a_bad_hour_are_found_out():
    """A token beside the row was measured while another program ran, and would fit the cap."""
    machine = quiet("gpu-dense")
    known, wrong = probed(machine), probed(machine)
    for cost in (known, wrong):
        cost.doubt()
    row_ms = predict(wrong, 0, 1, 0, 0)
    for prompt in range(1, 64):
        at = prompt_class(prompt)
        wrong.mean[0, 1, at], wrong.count[0, 1, at] = 1.7 * row_ms, FADED
        wrong.tokens[0, 1, at] = prompt
    beside = []
    for cost in (known, wrong):
        told = machine.knobs()._replace(can_aside=False)
        result = sim_run.simulate(storm(tokens=10_000), machine, told, cost, seconds=12.0)
        beside.append(float(result.outcome.totals[sim_beside.STREAM_PROMPT]))
    assert beside[1] > 0.5 * beside[0] > 0.0


def test_background_rows_take_no_more_cells_than_are_left():
    """Two that wait for a prompt's cells have one cell between them."""
    zeros = [0] * 5
    load = Load(
        due_ms=[0.0, 0.0, 0.0, 0.0, 257.0], parent=[-1, -1, 0, 0, 0], lane=[0, 0, 1, 1, 0],
        prompt=[1, 1, 235, 650, 572], output=[1, 1, 1, 1, 46], cap=[0.0] * 5, isolate=zeros,
        auto=zeros, program=zeros, weight=[1.0] * 5,
    )  # fmt: skip
    machine = MACHINES["cpu-2core-amx-0.5b"]
    told = machine.knobs(n_batch=8)
    result = sim_run.simulate(
        load, machine, told, CostModel.unknown(), n_slots=16, n_seq=4, n_ctx=1500,
        most_ticks=200_000, random_seed=0,
    )  # fmt: skip
    assert not result.outcome.faults.any()
