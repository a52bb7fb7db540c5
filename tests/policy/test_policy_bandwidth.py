"""The ΣBMT model: bytes of a tick, what fits a budget, and the governor that finds the budget."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bandwidth_loads import DENSE, MOE, feed, noisy
from umaserve.engine.start.bandwidth_probe import buffer_bytes, probe_bandwidth
from umaserve.llama.traffic import Traffic
from umaserve.policy.bytes import bandwidth as bw
from umaserve.policy.bytes.bandwidth import Budget

TRIALS = 1500
WINDOW_AND_A_BIT = bw.WINDOW + bw.EVERY

tokens = st.integers(1, 2000)
cells = st.integers(0, 100_000)


@st.composite
def traffics(draw) -> Traffic:
    size = st.floats(0, 1e9)
    experts = draw(st.integers(0, 256))
    return Traffic(
        dense=draw(st.floats(1e3, 1e9)), head=draw(size), embedding=draw(st.floats(0, 1e5)),
        expert=draw(size) if experts else 0.0, n_expert=float(experts),
        n_expert_used=float(draw(st.integers(1, experts))) if experts else 0.0,
        kv_cell=draw(st.floats(0, 1e6)), kv_exact=1.0, mask_cell=draw(st.floats(0, 100)),
        activation=draw(st.floats(0, 1e7)), logits=draw(st.floats(0, 1e6)),
        n_ubatch=float(draw(st.sampled_from([1, 64, 512, 4096]))),
    )  # fmt: skip


# --- what a tick moves


@pytest.mark.parametrize(("n_expert", "n_used"), [(8, 2), (16, 4), (128, 8), (5, 5)])
def test_expected_experts_against_drawing_them(n_expert: int, n_used: int) -> None:
    rng = np.random.default_rng(7)
    for n in (1, 2, 5, 17, 64):
        picks = rng.random((TRIALS, n, n_expert)).argpartition(n_used - 1, axis=2)[:, :, :n_used]
        hit = np.zeros((TRIALS, n_expert), bool)
        np.put_along_axis(hit, picks.reshape(TRIALS, -1), True, axis=1)
        drawn = hit.sum(axis=1)
        expected = bw.expected_experts(float(n_expert), float(n_used), n)
        tolerance = 5 * drawn.std() / math.sqrt(TRIALS) + 0.01
        assert abs(drawn.mean() - expected) <= tolerance, n


def test_expected_experts_at_the_ends() -> None:
    assert bw.expected_experts(128.0, 8.0, 1) == pytest.approx(8.0)
    assert bw.expected_experts(128.0, 8.0, 100000) == pytest.approx(128.0)
    assert bw.expected_experts(128.0, 8.0, 0) == 0.0
    assert bw.expected_experts(0.0, 0.0, 5) == 0.0


def test_a_tick_written_out() -> None:
    moved = bw.tick_bytes(DENSE, 2, 10, 700, 10, 768)
    weights = 380e6 + 145e6
    rows = 10 * (952 + 2.2e6 + 768 * 50)
    assert moved == weights + rows + 710 * 12288 + 2 * 3 * 607744


def test_a_tick_without_outputs_leaves_the_head_alone() -> None:
    assert bw.weight_bytes(DENSE, 0, 100) == 380e6
    assert bw.weight_bytes(DENSE, 1, 100) == 525e6
    assert bw.tick_bytes(DENSE, 0, 0, 0, 0) == 0.0


@pytest.mark.parametrize(("n", "graphs"), [(1, 1), (512, 1), (513, 2), (1024, 2), (1025, 3)])
def test_a_long_batch_reads_the_weights_again(n: int, graphs: int) -> None:
    assert bw.weight_bytes(DENSE, 1, n) == graphs * 380e6 + 145e6


@given(traffics(), st.integers(0, 8), tokens)
def test_weights_lie_between_dense_and_everything(traffic, rows, n) -> None:
    n = min(n, int(traffic.n_ubatch))  # one graph
    least = traffic.dense + (traffic.head if rows else 0.0)
    found = bw.weight_bytes(traffic, rows, n)
    assert least <= found <= (least + traffic.n_expert * traffic.expert) * (1 + 1e-12)
    assert found >= (least + traffic.n_expert_used * traffic.expert) * (1 - 1e-12)


@given(traffics(), st.integers(0, 64), tokens, cells, cells, cells, st.integers(0, 5))
def test_more_of_anything_moves_no_fewer_bytes(traffic, rows, n, read, written, span, which):
    less = [rows, n, read, written, span]
    if which == 5:
        more = [value + 1 for value in less]
    else:
        more = [value + (i == which) for i, value in enumerate(less)]
    slack = 1 + 1e-9
    assert bw.tick_bytes(traffic, *less) <= bw.tick_bytes(traffic, *more) * slack


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_span_is_what_llama_cpp_pads_to(end: int, n_ctx: int) -> None:
    span = bw.attention_span(end, n_ctx)
    assert span <= n_ctx
    assert span >= min(end, n_ctx)
    assert span == n_ctx or (span % 256 == 0 and span - end < 256)


# --- what fits


@given(traffics(), st.floats(0, 1e11), st.integers(0, 32), cells, st.integers(0, 3000))
def test_as_many_prompt_tokens_as_fit(traffic, budget, rows, read, most) -> None:
    n = bw.prompt_tokens_within(traffic, budget, rows, read, most)

    def within(prompt: int) -> bool:
        n_all = rows + prompt
        return bw.tick_bytes(traffic, rows, n_all, read + prompt, n_all) <= budget

    assert 0 <= n <= most
    assert n == 0 or within(n)
    assert n == most or not within(n + 1)


def test_without_a_budget_everything_fits() -> None:
    free = bw.budget_bytes(0.0, 10.0)
    assert free == math.inf
    assert bw.prompt_tokens_within(MOE, free, 4, 1000, 2048) == 2048
    assert bw.budget_bytes(320e9, 50.0) == 16e9
    assert bw.budget_bytes(320e9, -1.0) == 0.0
    assert bw.prompt_tokens_within(MOE, 0.0, 1, 0, 512) == 0


# --- mixtures of experts


@given(traffics(), st.integers(1, 200), st.integers(0, 4000))
def test_every_merged_row_makes_a_row_cheaper(traffic, rows, each) -> None:
    """Inside one graph, bytes per row only ever fall: by bytes alone, merging always pays."""
    if rows >= traffic.n_ubatch:
        return

    def average(n: int) -> float:
        return bw.tick_bytes(traffic, n, n, n * each, n) / n

    assert average(rows + 1) <= average(rows) * (1 + 1e-9)


def test_experts_explode_where_dense_models_ride_free() -> None:
    def share(traffic: Traffic, rows: int) -> float:
        """What one more row adds, over the average of the rows that there are."""
        some, more = (bw.tick_bytes(traffic, n, n, 0, n) for n in (rows, rows + 1))
        return (more - some) / (some / rows)

    assert share(DENSE, 1) < 0.02
    shares = [share(MOE, rows) for rows in (1, 2, 4, 8, 16, 64)]
    assert 0.5 < shares[0] < 0.65  # 8 more of 128 experts, and dense weights for nothing
    # the second row's experts are nearly all new, a seventeenth row's hardly; then few are left
    assert shares[0] < shares[3]
    assert share(MOE, 200) < 0.05


# --- the governor


def budget_of(setting: str, probe_bps: float | None) -> Budget:
    """A budget that starts at what a probe of the memory has found, if there was one."""
    budget = Budget.of(setting)
    budget.start_at(probe_bps or 0.0)
    return budget


@pytest.mark.parametrize(
    ("setting", "probe", "bps"),
    [("off", 30e9, 0.0), ("auto", 30e9, 30e9), ("auto", None, 0.0), ("320GBps", 30e9, 320e9)],
)
def test_where_a_budget_starts(setting: str, probe: float | None, bps: float) -> None:
    budget = budget_of(setting, probe)
    assert bw.budget_bps(budget) == bps
    assert budget.figures[bw._LEVEL] == bw.measured_bps(budget) == 0.0


def test_a_given_budget_and_none_stay() -> None:
    for setting, bps in (("60.5GBps", 60.5e9), ("off", 0.0)):
        budget = budget_of(setting, 10e9)
        feed(budget, np.full(300, 30e9))
        assert bw.budget_bps(budget) == bps
        assert bw.measured_bps(budget) == pytest.approx(30e9, rel=1e-6)
        assert budget.figures[bw._LEVEL] == pytest.approx(30e9, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("probe", [None, 12e9, 28e9, 40e9])
def test_an_automatic_budget_finds_the_bandwidth(seed: int, probe: float | None) -> None:
    rng = np.random.default_rng(seed)
    budget = budget_of("auto", probe)
    feed(budget, noisy(rng, 30e9, 200))
    assert budget.figures[bw._LEVEL] == pytest.approx(30e9, rel=0.06)
    assert bw.budget_bps(budget) == pytest.approx(1.25 * 30e9, rel=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_ticks_that_seem_too_fast_move_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bps = noisy(rng, 30e9, 400)
    bps[rng.choice(400, 12, replace=False)] *= 1000  # a clock that jumped
    bps[0] = 1e15
    budget = budget_of("auto", 25e9)
    feed(budget, bps[:4])
    assert bw.budget_bps(budget) == 25e9
    feed(budget, bps[4:])
    assert budget.figures[bw._LEVEL] == pytest.approx(30e9, rel=0.08)


def test_ticks_bound_by_arithmetic_are_not_the_limit() -> None:
    rng = np.random.default_rng(3)
    budget = budget_of("auto", 28e9)
    feed(budget, noisy(rng, 30e9, 64))
    feed(budget, noisy(rng, 6e9, 500), n=5)  # merged decodes
    feed(budget, noisy(rng, 2e9, 500), n=256)  # prompts
    assert budget.figures[bw._LEVEL] > 26e9
    assert bw.measured_bps(budget) < 3e9
    only = budget_of("auto", 28e9)
    feed(only, noisy(rng, 2e9, 500), n=256)
    assert bw.budget_bps(only) == 14e9  # half the probe is the least


def test_a_machine_that_becomes_slower_is_believed_and_forgotten() -> None:
    budget = Budget.of("auto")
    feed(budget, np.full(100, 30e9))
    feed(budget, np.full(WINDOW_AND_A_BIT, 20e9))
    assert budget.figures[bw._LEVEL] == pytest.approx(20e9, rel=0.01)
    feed(budget, np.full(100, 15e9), n=4)
    assert budget.figures[bw._LEVEL] > 19e9
    feed(budget, np.full(10000, 15e9), n=4)
    assert budget.figures[bw._LEVEL] == pytest.approx(15e9, rel=0.01)


def test_the_headroom_lets_a_trimmed_machine_show_more() -> None:
    """Solo ticks are launch-bound (0.5 GB in 2.3 ms of 4 TB/s); what rides is bounded by it."""
    budget = Budget.of("auto")
    solo = bw.tick_bytes(DENSE, 1, 1, 300, 1)

    def tick_s(moved: float) -> float:
        return 2.3e-3 + max(moved - solo, 0.0) / 4e12

    for _ in range(20):
        bw.observe(budget, solo, int(tick_s(solo) * 1e9), 1)
    first = bw.prompt_tokens_within(
        DENSE, bw.budget_bytes(bw.budget_bps(budget), 2.76), 1, 300, 512
    )
    assert 0 < first < 200
    for _ in range(300):
        allowed = bw.budget_bytes(bw.budget_bps(budget), 2.76)
        n = bw.prompt_tokens_within(DENSE, allowed, 1, 300, 511)
        moved = bw.tick_bytes(DENSE, 1, 1 + n, 300 + n, 1 + n)
        bw.observe(budget, moved, int(tick_s(moved) * 1e9), 1 + n)
    assert n == 511


@given(st.lists(st.tuples(st.floats(-1e9, 1e15), st.integers(-5, 10**12), st.integers(-3, 10**6))))
def test_no_tick_breaks_the_governor(ticks) -> None:
    budget = budget_of("auto", 20e9)
    for moved, ns, n in ticks:
        bw.observe(budget, moved, ns, n)
    for value in (bw.budget_bps(budget), budget.figures[bw._LEVEL], bw.measured_bps(budget)):
        assert math.isfinite(value) and value >= 0.0
    assert bw.budget_bps(budget) >= 10e9


# --- compiled or not

_FIGURES = """
import json
import numpy as np
from umaserve.policy.bytes import bandwidth as bw
from tests.support.bandwidth_loads import DENSE, MOE, feed, noisy
budget = bw.Budget.of("auto")
budget.start_at(25e9)
feed(budget, noisy(np.random.default_rng(1), 30e9, 150))
feed(budget, noisy(np.random.default_rng(2), 9e9, 50), n=40)
out = [bw.budget_bps(budget), budget.figures[bw._LEVEL], bw.measured_bps(budget)]
for traffic in (DENSE, MOE):
    out += [bw.tick_bytes(traffic, r, n, 900, n, 1024) for r in (0, 3) for n in (3, 512, 1700)]
    out += [bw.prompt_tokens_within(traffic, 9e9, 2, 500, 4096)]
    out += [bw.attention_span(300, 4096)]
print(json.dumps(out))
"""


def test_compiled_and_interpreted_agree() -> None:
    answers = []
    for disabled in ("0", "1"):
        env = {**os.environ, "NUMBA_DISABLE_JIT": disabled}
        done = subprocess.run(
            [sys.executable, "-c", _FIGURES], env=env, capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout))
    assert len(answers[0]) == 19
    assert answers[0] == pytest.approx(answers[1], rel=1e-12)


# --- the probe


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="plain Python moves few bytes"
)
def test_the_probe_measures_this_machine() -> None:
    found = probe_bandwidth(0.01, threads=1)
    assert found is None or 1e8 < found < 1e13
    assert 64 << 20 <= buffer_bytes() <= 512 << 20


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_the_buffer_is_no_larger_than_the_weights(a: int, b: int) -> None:
    few, many = sorted((a, b))
    assert buffer_bytes(few) <= buffer_bytes(many) <= buffer_bytes()
    assert 64 << 20 <= buffer_bytes(few) <= max(few, 64 << 20)


def test_no_probe_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umaserve.engine.start.bandwidth_probe.buffer_bytes", lambda _: 1 << 50)
    assert probe_bandwidth(0.01) is None
