"""How much ticks vary, and what the baseline makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import empty, known, plan_of, put, told
from umaserve.policy.base import (
    FLAG_GUARDED,
    PlanInfo,
)
from umaserve.policy.cost.model import TAIL_WIDTH, CostModel, learn, learn_tail
from umaserve.policy.cost.prediction import predict
from umaserve.policy.latency_guard import TAIL_KNOWN, learn_tails

CPU = "cpu-2core-0.5b"


def copy_of(cost: CostModel) -> CostModel:
    other = CostModel.unknown()
    other.copy_from(cost)
    return other


def with_tails(alone: float) -> CostModel:
    """A two-core machine whose ticks of one row vary by so much."""
    cost = copy_of(known(CPU))
    cost.tails[1] = alone, TAIL_KNOWN
    return cost


def planned(cost: CostModel, *, overlaps: bool = False):
    """Somebody interactive decodes, and a long background prompt waits."""
    state = empty()
    put(state, 0, 0, 100, 99, credit=0.0)
    put(state, 5, 1, 2000, 0)
    return plan_of(state, told(CPU, can_aside=False, overlaps=overlaps), cost)


@given(st.integers(0, 2**31), st.sampled_from([0.02, 0.1, 0.3]), st.floats(0.0, 0.2))
@settings(max_examples=50)
def test_the_95th_percentile_is_followed(seed, spread, stalls):
    rng = np.random.default_rng(seed)
    values = 1.0 + np.abs(rng.normal(0.0, spread, 1500))
    values[rng.random(values.size) < stalls] += 0.5
    cost = CostModel.unknown()
    tail, above = cost.tails[3], 0
    for i, times in enumerate(values):
        above += i >= 500 and times > tail.times
        learn_tail(cost, 3, times)
    assert tail.seen == values.size
    assert 0.01 <= above / 1000 <= 0.15  # in the long run one in twenty
    lower, upper = values.min() - TAIL_WIDTH, values.max() + TAIL_WIDTH
    assert lower <= tail.times <= upper
    others = cost.numbers()["tails"]
    assert not others[2].any() and not others[4].any()


@pytest.mark.parametrize("bad", [1.8, 2.5, 10.0])
def test_ticks_that_were_predicted_badly_at_first_are_forgotten(bad):
    """Within half a minute of a processor's ticks, also where they are much longer than usual."""
    cost, rng = CostModel.unknown(), np.random.default_rng(1)
    for i in range(900):
        learn_tail(cost, 1, bad if i < 60 else 1.0 + abs(rng.normal(0.0, 0.1)))
        if i == 59:
            assert cost.tails[1].times == pytest.approx(min(bad, 2.5), abs=0.03)
    assert 1.15 < cost.tails[1].times < 1.25  # two deviations
    # what an earlier run saw counts less than what this one does
    before = cost.tail_counts.sum()
    cost.doubt()
    assert cost.tail_counts.sum() < 0.3 * before and cost.tails[1].seen == 900


def test_a_baseline_is_the_95th_percentile_that_was_seen():
    plain = known(CPU)
    mean = predict(plain, 0, 1, 0, 500)
    assumed = planned(plain)[0].info.baseline_ms
    seen = with_tails(1.4)
    assert planned(seen)[0].info.baseline_ms == pytest.approx(1.4 * mean)
    seen.tails[1].seen -= 1.0  # not enough
    assert planned(seen)[0].info.baseline_ms == pytest.approx(assumed)
    # an accelerator's ticks hardly vary: what is assumed does
    assert planned(with_tails(1.4), overlaps=True)[0].info.baseline_ms == pytest.approx(assumed)


def told_of(**fields: float) -> PlanInfo:
    info = PlanInfo.zeros()
    for name, value in fields.items():
        setattr(info, name, value)
    return info


def test_which_ticks_count():
    cost = CostModel.unknown()
    for _ in range(3):
        learn(cost, 0, 1, 0, 0.0, 10.0)
        learn(cost, 0, 1, 2, 0.0, 12.0)
    alone = told_of(interactive_rows=1, predicted_ms=10.0)
    waits = told_of(interactive_rows=1, predicted_ms=10.0, marks=FLAG_GUARDED)
    laden = told_of(interactive_rows=1, predicted_ms=12.0, passengers=2)
    for info, rows, prompt, wall_ms in (
        (told_of(predicted_ms=10.0), 1, 0, 30.0),  # a background row
        (told_of(interactive_rows=1), 1, 0, 30.0),  # nothing was predicted
        (waits, 1, 0, 30.0),  # somebody else is about
        (laden, 1, 2, 30.0),  # with passengers
        (alone, 2, 0, 30.0),  # a shape that was never seen
    ):
        learn_tails(cost, info, rows, prompt, wall_ms)
    assert not cost.numbers()["tails"].any()
    learn_tails(cost, alone, 1, 0, 13.0)
    assert cost.tails[1].times == pytest.approx(1.3, abs=TAIL_WIDTH)
    assert cost.tails[1].seen == 1.0
    assert np.count_nonzero(cost.numbers()["tails"]) == 2
