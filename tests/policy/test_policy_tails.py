"""How much ticks vary: what the baseline makes of it, and what slices do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import empty, known, plan_of, put, told
from umaserve.policy.base import (
    FLAG_GUARDED,
    FLAG_SPENT,
    PlanInfo,
)
from umaserve.policy.cost.model import (
    ALONE,
    FADED,
    LADEN,
    TAIL_WIDTH,
    CostModel,
    is_old,
    learn,
    learn_tail,
    predict,
)
from umaserve.policy.latency_guard import HARD, TAIL_KNOWN, learn_tails

CPU = "cpu-2core-0.5b"


def copy_of(cost: CostModel) -> CostModel:
    other = CostModel.unknown()
    other.copy_from(cost)
    return other


def with_tails(alone: float, laden: float = 0.0) -> CostModel:
    """A two-core machine whose ticks of one row vary by so much."""
    cost = copy_of(known(CPU))
    for load, times in ((ALONE, alone), (LADEN, laden)):
        if times:
            cost.tails[0, 1, load] = times, TAIL_KNOWN
    return cost


def planned(cost: CostModel, *, credit: float = 0.0, paced: bool = False, number: int = 1):
    """Somebody interactive decodes, and a long background prompt waits."""
    state = empty()
    put(state, 0, 0, 100, 99, credit=credit)
    put(state, 5, 1, 2000, 0)
    return plan_of(state, told(CPU, can_aside=False, paced=paced), cost, number=number)


@given(st.integers(0, 2**31), st.sampled_from([0.02, 0.1, 0.3]), st.floats(0.0, 0.2))
@settings(max_examples=50, deadline=None)
def test_the_95th_percentile_is_followed(seed, spread, stalls):
    rng = np.random.default_rng(seed)
    values = 1.0 + np.abs(rng.normal(0.0, spread, 1500))
    values[rng.random(values.size) < stalls] += 0.5
    cost = CostModel.unknown()
    tail, above = cost.tails[0, 3, ALONE], 0
    for i, times in enumerate(values):
        above += i >= 500 and times > tail.times
        learn_tail(cost, 0, 3, ALONE, times)
    assert tail.seen == values.size
    assert 0.01 <= above / 1000 <= 0.15  # in the long run one in twenty
    lower, upper = values.min() - TAIL_WIDTH, values.max() + TAIL_WIDTH
    assert lower <= tail.times <= upper
    others = cost.numbers()["tails"]
    assert not others[0, 2].any() and not others[0, 3, LADEN].any()


@pytest.mark.parametrize("bad", [1.8, 2.5, 10.0])
def test_ticks_that_were_predicted_badly_at_first_are_forgotten(bad):
    """Within half a minute of a processor's ticks, also where they are much longer than usual."""
    cost, rng = CostModel.unknown(), np.random.default_rng(1)
    for i in range(900):
        learn_tail(cost, 0, 1, ALONE, bad if i < 60 else 1.0 + abs(rng.normal(0.0, 0.1)))
        if i == 59:
            assert cost.tails[0, 1, ALONE].times == pytest.approx(min(bad, 2.5), abs=0.03)
    assert 1.15 < cost.tails[0, 1, ALONE].times < 1.25  # two deviations
    # what an earlier run saw counts less than what this one does
    before = cost.tail_counts.sum()
    cost.doubt()
    assert cost.tail_counts.sum() < 0.3 * before and cost.tails[0, 1, ALONE].seen == 900


def test_a_baseline_is_the_95th_percentile_that_was_seen():
    plain = known(CPU)
    mean = predict(plain, 0, 1, 0, 500)
    assumed = planned(plain)[0].info.baseline_ms
    seen = with_tails(1.4)
    assert planned(seen)[0].info.baseline_ms == pytest.approx(1.4 * mean)
    seen.tails[0, 1, ALONE].seen -= 1.0  # not enough
    assert planned(seen)[0].info.baseline_ms == pytest.approx(assumed)
    # an accelerator's ticks hardly vary: what is assumed does
    assert planned(with_tails(1.4), paced=True)[0].info.baseline_ms == pytest.approx(assumed)


@pytest.mark.parametrize("laden", [0.0, 1.0, 1.1, 1.4, 2.0])
def test_slices_may_be_late_by_as_much_as_ticks_vary_and_no_usual_tick_is_longer(laden):
    alone = 1.4
    cost = with_tails(alone, laden)
    mean = predict(cost, 0, 1, 0, 500)
    usual, _ = planned(cost, credit=0.9)
    assert not int(usual.info.marks) & FLAG_SPENT
    assert usual.info.predicted_ms <= 1.2 * mean * 1.001
    slice_, entries = planned(cost, credit=2.5)
    pause = slice_.info.predicted_ms
    if 0 not in slice_.slots[:entries]:
        pause += mean
    assert pause <= max(HARD * alone / (laden or alone), 1.2) * mean * 1.001
    if laden == 1.0:  # steady ones may be longer in the mean
        assert pause > planned(with_tails(alone), credit=2.5)[0].info.predicted_ms


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
        (laden, 1, 7, 30.0),  # a shape that was never seen
    ):
        learn_tails(cost, info, rows, prompt, wall_ms)
    assert not cost.numbers()["tails"].any()
    learn_tails(cost, alone, 1, 0, 13.0)
    learn_tails(cost, laden, 1, 2, 13.2)
    assert cost.tails[0, 1].times.tolist() == pytest.approx([1.3, 1.1], abs=TAIL_WIDTH)
    assert cost.tails[0, 1].seen.tolist() == [1.0, 1.0]
    assert np.count_nonzero(cost.numbers()["tails"]) == 4


def test_what_does_not_fit_is_looked_at_again_when_it_is_old_and_on_as_long_as_it_gets_cheaper():
    cost = copy_of(known(CPU))
    row_ms = predict(cost, 0, 1, 0, 500)
    for tokens in range(1, 9):  # a token more costs more than the cap leaves
        cost.mean[0, 1, tokens], cost.count[0, 1, tokens] = 1.4 * row_ms, FADED + 1.0
        cost.tokens[0, 1, tokens] = tokens
    look = {"credit": 1.0, "number": 16}
    assert planned(cost, **look)[0].info.passengers == 0.0
    cost.count[0, 1, 1] = FADED
    assert is_old(cost, 0, 1, 1)
    assert planned(cost, **look)[0].info.passengers == 1.0
    assert planned(cost, credit=1.0, number=17)[0].info.passengers == 0.0
    past = cost.kv[0, 1, 1]
    learn(cost, 0, 1, 1, past, 1.1 * row_ms)
    assert is_old(cost, 0, 1, 1) and cost.mean[0, 1, 1] < 1.3 * row_ms
    learn(cost, 0, 1, 1, past, float(cost.mean[0, 1, 1]))  # as believed
    assert not is_old(cost, 0, 1, 1)
