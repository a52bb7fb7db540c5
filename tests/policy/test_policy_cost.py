"""The learned cost model: what it believes after which ticks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.policy.cost.model import (
    FADED,
    FRESH,
    MODES,
    MOST_SURE,
    TILED,
    CostModel,
    learn,
    prompt_class,
)
from umaserve.policy.cost.prediction import (
    FILLED_COST,
    FILLED_PAST,
    IN_TURNS_COST,
    efficient_chunk,
    is_filled,
    is_known,
    largest_chunk,
    predict,
)
from umaserve.policy.cost.sweet_spot import LOOK_AT_MOST, WORTH

ROOT = Path(__file__).parents[2]

shapes = st.tuples(
    st.integers(0, MODES - 1), st.integers(0, 40), st.integers(0, 3000), st.integers(0, 16000),
    st.floats(0.01, 1e5),
)  # fmt: skip


@given(st.lists(shapes, max_size=60), st.integers(0, 40), st.integers(0, 3000))
@settings(max_examples=150)
def test_a_prediction_is_never_negative_and_always_a_number(ticks, rows, prompt):
    cost = CostModel.unknown()
    for mode, r, p, kv, ms in ticks:
        learn(cost, mode, r, p, kv, ms)
    for mode in range(MODES):
        for kv in (0, 500, 16000):
            ms = predict(cost, mode, rows, prompt, kv)
            assert np.isfinite(ms)
            assert ms >= 0.0
    assert predict(cost, 0, 0, 0, 100) == 0.0


@given(
    st.lists(shapes, min_size=4, max_size=60), st.integers(0, 40), st.floats(0.01, 1e4),
    st.integers(1, 4096),
)  # fmt: skip
@settings(max_examples=150)
def test_the_largest_chunk_keeps_its_limit(ticks, rows, limit, most):
    cost = CostModel.unknown()
    for mode, r, p, kv, ms in ticks:
        learn(cost, mode, r, p, kv, ms)
    chunk = largest_chunk(cost, 0, rows, 300, 300, limit, most)
    assert 0 <= chunk <= most
    if chunk:
        assert 0.0 < predict(cost, 0, rows, chunk, 300) <= limit


def test_nothing_is_known_at_first():
    cost = CostModel.unknown()
    assert predict(cost, 0, 1, 0, 0) == 0.0
    assert not is_known(cost, 0, 1, 0)
    assert largest_chunk(cost, 0, 1, 0, 0, 1e9, 100) == 0


@pytest.mark.parametrize(("rows", "prompt"), [(1, 0), (7, 0), (0, 16), (0, 300), (3, 40)])
def test_stationary_costs_are_learned_within_a_few_per_cent(rows, prompt):
    rng = np.random.default_rng(7)
    cost = CostModel.unknown()
    for _ in range(200):
        learn(cost, 0, rows, prompt, 1000, 20.0 * (1.0 + 0.05 * rng.standard_normal()))
    assert predict(cost, 0, rows, prompt, 1000) == pytest.approx(20.0, rel=0.04)


def test_rare_outliers_hardly_move_a_mean():
    rng = np.random.default_rng(3)
    cost = CostModel.unknown()
    worst = 0.0
    for i in range(2000):
        ms = 20.0 * (1.0 + 0.02 * rng.standard_normal())
        if rng.random() < 0.05:
            ms *= 10.0
        learn(cost, 0, 1, 0, 100, ms)
        if i > 200:
            worst = max(worst, predict(cost, 0, 1, 0, 100))
    # one outlier of WILD times in 20 ticks is worth 7.5 %, and some come close together
    assert predict(cost, 0, 1, 0, 100) == pytest.approx(20.0, rel=0.2)
    assert worst < 20.0 * 1.4


@pytest.mark.parametrize("after", [8.0, 60.0])
def test_a_new_regime_is_learned_in_bounded_time(after):
    cost = CostModel.unknown()
    for _ in range(5000):
        learn(cost, 0, 1, 0, 100, 20.0)
    for _ in range(150):
        learn(cost, 0, 1, 0, 100, after)
    assert predict(cost, 0, 1, 0, 100) == pytest.approx(after, rel=0.05)


def test_the_part_that_grows_with_the_cache_is_learned():
    rng = np.random.default_rng(5)
    cost = CostModel.unknown()

    def true(kv):
        return 10.0 + 1.5 * kv / 1000.0

    for _ in range(3000):
        kv = int(rng.integers(0, 8000))
        learn(cost, 0, 1, 0, kv, true(kv) * (1.0 + 0.01 * rng.standard_normal()))
    for kv in (0, 4000, 8000):
        assert predict(cost, 0, 1, 0, kv) == pytest.approx(true(kv), rel=0.08)


def test_a_machine_that_stalls_does_not_teach_a_slope():
    rng = np.random.default_rng(6)
    cost = CostModel.unknown()
    for past in range(3000):
        # as sessions grow, somebody else takes the cores ever more often
        stalled = rng.random() < 0.2 * past / 3000
        learn(cost, 0, 1, 0, past, 60.0 if stalled else 20.0 + 0.4 * rng.standard_normal())
    learned_at = cost.kv[0, 1, 0]
    grown = predict(cost, 0, 1, 0, learned_at + 3000) - predict(cost, 0, 1, 0, learned_at)
    assert 0.0 <= grown < 1.0


def test_a_few_ticks_make_no_slope():
    cost = CostModel.unknown()
    for past, ms in ((0, 20.0), (0, 20.0), (60, 24.0), (80, 25.0), (90, 26.0)):
        learn(cost, 0, 1, 0, past, ms)
    assert predict(cost, 0, 1, 0, 8000) < 40.0


def tiled_ms(tokens: int, past: float) -> float:
    """Time of a chunk on two cores with AMX, of a 0.5B in q8_0."""
    return 20.0 + 1.4 * tokens + (17.0 if tokens < TILED else 1.8) * tokens * past / 1000.0


def tiled(filled: int) -> CostModel:
    """Costs as libllama's attention on a processor makes them."""
    rng, cost = np.random.default_rng(7), CostModel.unknown()
    cost.filled[0] = filled
    sizes = [1, 8, 16, 32, 48, 64, 128, 512]
    ticks = [(tokens, 0) for tokens in sizes for _ in range(20)]
    ticks += [(int(rng.choice(sizes)), int(rng.integers(2000))) for _ in range(3000)]
    for tokens, past in ticks:
        rows, prompt = (1, 0) if tokens == 1 else (0, tokens)
        learn(cost, 0, rows, prompt, past, tiled_ms(tokens, past) * rng.normal(1.0, 0.02))
    return cost


def test_the_context_costs_few_tokens_more_than_many():
    cost = tiled(0)
    for tokens, past in ((16, 300), (32, 1500), (64, 300), (64, 1500), (512, 1500)):
        assert predict(cost, 0, 0, tokens, past) == pytest.approx(tiled_ms(tokens, past), rel=0.15)
    assert predict(cost, 0, 1, 0, 1500) == pytest.approx(tiled_ms(1, 1500), rel=0.15)


def test_a_short_prompt_takes_no_longer_than_one_of_a_tile():
    cost = tiled(TILED)
    for past in (FILLED_PAST, 200, 1000, 1900):
        whole = predict(cost, 0, 0, TILED, past)
        for tokens in range(8, TILED):
            assert predict(cost, 0, 0, tokens, past) <= whole / FILLED_COST
    assert not is_filled(cost, 0, 63, FILLED_PAST - 1) and is_filled(cost, 0, 32, 1000)
    assert not is_filled(cost, 0, 7, 1000) and not is_filled(cost, 0, TILED, 1000)
    assert not is_filled(tiled(0), 0, 32, 1000)


def test_a_chunk_is_as_large_as_its_tick_is_filled():
    cost = tiled(TILED)
    for past in (0, 500, 1000, 2000):
        for share in (0.5, 0.7, 0.8):
            chunk = efficient_chunk(cost, past, 1e9, 2048, share)
            assert chunk >= TILED or not is_filled(cost, 0, chunk, past)


def test_forgetting_leaves_the_tokens_that_ticks_are_filled_up_to():
    cost, other = tiled(TILED), CostModel.unknown()
    other.copy_from(cost)
    cost.forget()
    assert cost.filled[0] == TILED and other.filled[0] == 0 and not cost.slope.any()


def test_a_copy_answers_alike_and_forgetting_is_complete():
    cost, other = CostModel.unknown(), CostModel.unknown()
    for ms in (5.0, 6.0, 7.0):
        learn(cost, 0, 2, 30, 50, ms)
    other.copy_from(cost)
    assert predict(other, 0, 2, 30, 50) == predict(cost, 0, 2, 30, 50) > 0.0
    other.forget()
    assert predict(other, 0, 2, 30, 50) == 0.0
    assert predict(cost, 0, 2, 30, 50) > 0.0


_SCRIPT = """
import json
import numpy as np
from umaserve.policy.cost.model import CostModel, learn
from umaserve.policy.cost.prediction import largest_chunk, predict
rng = np.random.default_rng(1)
cost = CostModel.unknown()
said = []
for _ in range(400):
    mode, rows, prompt = int(rng.integers(2)), int(rng.integers(0, 20)), int(rng.integers(0, 600))
    kv, ms = int(rng.integers(0, 9000)), float(rng.lognormal(3.0, 1.0))
    learn(cost, mode, rows, prompt, kv, ms)
    said.append(predict(cost, mode, rows + 1, prompt // 2, kv))
    said.append(largest_chunk(cost, mode, rows, kv, kv, 40.0, 512))
print(json.dumps([float(x) for x in said]))
"""


def test_compiled_and_interpreted_answers_agree():
    answers = []
    for off in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "NUMBA_DISABLE_JIT": off}, timeout=250,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0] == pytest.approx(answers[1], rel=1e-9, abs=1e-9)


def test_confidence_fades_while_other_shapes_are_used():
    cost = CostModel.unknown()
    for _ in range(200):
        learn(cost, 0, 4, 0, 0.0, 10.0)
    assert 15.0 < cost.count[0, 4, 0] <= MOST_SURE
    learn(cost, 0, 3, 0, 0.0, 9.0)  # seen once: stays as doubtful as it is
    for _ in range(3000):
        learn(cost, 0, 1, 0, 0.0, 4.0)
    assert cost.count[0, 4, 0] == FADED
    assert cost.count[0, 3, 0] == 1.0
    assert cost.count[0, 1, 0] > 15.0
    assert is_known(cost, 0, 4, 0)
    assert predict(cost, 0, 4, 0, 0.0) == pytest.approx(10.0)
    for _ in range(8):  # so that it can be learned anew
        learn(cost, 0, 4, 0, 0.0, 20.0)
    assert predict(cost, 0, 4, 0, 0.0) > 15.0


def test_what_an_earlier_run_learned_is_believed_less():
    cost = CostModel.unknown()
    for _ in range(100):
        learn(cost, 0, 2, 0, 0.0, 10.0)
    learn(cost, 0, 3, 0, 0.0, 9.0)
    cost.doubt()
    assert cost.count[0, 2, 0] == FADED
    assert cost.count[0, 3, 0] == 1.0
    assert predict(cost, 0, 2, 0, 0.0) == pytest.approx(10.0)


def test_doubted_rows_take_little_longer_than_each_in_turn():
    """Others used the cores while it was measured: a tick thought so long is never looked at."""
    cost = seen((1, 0, 1.0), (2, 0, 2.4), (3, 0, 20.0))
    assert predict(cost, 0, 3, 0, 0.0) == pytest.approx(20.0)
    cost.doubt()
    assert predict(cost, 0, 3, 0, 0.0) == pytest.approx(IN_TURNS_COST * 3.0)
    assert 1.0 / WORTH < IN_TURNS_COST < LOOK_AT_MOST
    assert predict(cost, 0, 2, 0, 0.0) == pytest.approx(2.4)


def seen(*ticks, then=0):
    """A model that has seen ``(rows, prompt, ms)``, each ten times, and then other ticks."""
    cost = CostModel.unknown()
    for rows, prompt, ms in ticks:
        for _ in range(10):
            learn(cost, 0, rows, prompt, 0.0, ms)
    for _ in range(then):
        learn(cost, 0, 7, 0, 0.0, 5.0)
    return cost


def test_a_chunk_takes_no_longer_than_smaller_ones_for_as_many_tokens():
    ticks = (0, 24, 200.0), (0, 48, 900.0)
    assert predict(seen(*ticks), 0, 0, 48, 0.0) == pytest.approx(900.0)  # just measured
    old = seen(*ticks, then=2000)
    assert old.count[0, 0, prompt_class(48)] < FRESH
    assert 380.0 < predict(old, 0, 0, 48, 0.0) < 440.0
    assert largest_chunk(old, 0, 0, 0.0, 0.0, 450.0, 512) >= 48
    cheaper = seen((0, 24, 200.0), (0, 48, 300.0), then=2000)
    assert predict(cheaper, 0, 0, 48, 0.0) == pytest.approx(300.0)


def test_a_few_tokens_may_take_longer_than_one_at_a_time():
    old = seen((0, 1, 10.0), (0, 2, 28.0), (0, 8, 40.0), then=2000)
    assert predict(old, 0, 0, 2, 0.0) == pytest.approx(28.0)


def test_a_stall_does_not_count_as_noise_but_noise_does():
    cost = CostModel.unknown()
    for i in range(200):
        learn(cost, 0, 1, 0, 0.0, 10.0 + 0.2 * (-1) ** i)
    calm = float(cost.spread[0, 1, 0])
    assert calm == pytest.approx(0.2, rel=0.2)
    learn(cost, 0, 1, 0, 0.0, 25.0)
    assert cost.spread[0, 1, 0] < 1.1 * calm
    for i in range(200):
        learn(cost, 0, 1, 0, 0.0, 10.0 + 2.0 * (-1) ** i)
    assert cost.spread[0, 1, 0] > 1.5


def test_a_chunk_is_not_believed_to_cost_as_much_as_pieces_with_less_before_them():
    """On a processor 32 tokens behind 1,600 took 40 ms and were believed to take 3.6, by what 8
    took behind none: the streams paused for ten times as long as planned."""
    cost = CostModel.unknown()

    def tick(rows, prompt, past):
        learn(cost, 0, rows, prompt, past, 0.1 * (rows + prompt) * (1.0 + 7.0 * past / 1000.0))

    for _ in range(8):
        tick(0, 8, 0)
    for _ in range(3):
        tick(0, 32, 1600)
    cost.slope[:, 2] = 0.7
    assert cost.count[0, 0, prompt_class(32)] < FRESH
    assert predict(cost, 0, 0, 32, 1600) == pytest.approx(0.1 * 32 * 12.2, rel=0.2)
