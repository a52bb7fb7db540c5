"""What a finished tick says about others like it."""

from __future__ import annotations

import pytest

from umaserve.engine.ticks.account import is_for_pace, learn_tick
from umaserve.engine.ticks.records import Facts
from umaserve.policy.base import Memory, PlanInfo
from umaserve.policy.cost.model import RELIEVED, CostModel, learn
from umaserve.policy.cost.prediction import predict


def believed(rows, ms):
    cost = CostModel.unknown()
    for _ in range(40):
        learn(cost, 0, rows, 0, 0, ms)
    return cost


def tick(cost, rows, ms, *, passengers=0, disturbed=False):
    facts, info = Facts.zeros(), PlanInfo.zeros()
    facts.tokens = facts.decoding_rows = rows
    facts.disturbed = disturbed
    info.allowed_ms = 1.2 * predict(cost, 0, rows, 0, 0)
    info.predicted_ms, info.passengers = predict(cost, 0, rows, 0, 0), passengers
    learn_tick(cost, Memory.fresh(4), info, facts, 0, ms)
    return predict(cost, 0, rows, 0, 0)


@pytest.mark.parametrize("passengers", [0, 2])
def test_a_disturbed_tick_says_little(passengers):
    cost = believed(3, 1.5)
    assert tick(cost, 3, 2.0, passengers=passengers, disturbed=True) == 1.5
    assert tick(cost, 3, 1.5 * RELIEVED + 0.01, passengers=passengers, disturbed=True) == 1.5
    assert tick(cost, 3, 2.0, passengers=passengers) > 1.5


def test_decoders_that_ride_are_found_to_be_cheaper():
    """Each change of shape takes long on an accelerator, and that is all that was seen of them."""
    cost = believed(3, 4.4)
    for _ in range(200):
        tick(cost, 3, 1.8, passengers=2, disturbed=True)
    assert 1.7 < predict(cost, 0, 3, 0, 0) < 1.8 / RELIEVED + 0.1
    # a stream's own baseline is not learned from its fastest ticks
    alone = believed(1, 1.3)
    for _ in range(200):
        assert tick(alone, 1, 1.0, disturbed=True) == 1.3


def test_what_a_change_of_shape_costs_is_no_part_of_the_price_where_drafts_change_it():
    for may_draft, is_learned in ((0, True), (1, False)):
        cost, facts, info = believed(4, 2.0), Facts.zeros(), PlanInfo.zeros()
        facts.tokens = facts.decoding_rows = 4
        facts.changed, facts.may_draft = 2, may_draft
        learn_tick(cost, Memory.fresh(4), info, facts, 0, 4.0)
        assert (predict(cost, 0, 4, 0, 0) > 2.0) == is_learned


@pytest.mark.parametrize(
    ("drafted", "changed", "may_draft", "counts"),
    [(0, 0, 0, True), (0, 0, 1, True), (0, 2, 0, True), (7, 0, 1, False), (0, 1, 1, False)],
)
def test_drafts_take_nothing_of_what_streams_may_wait_for_others(
    drafted, changed, may_draft, counts
):
    facts = Facts.zeros()
    facts.drafted, facts.changed, facts.may_draft = drafted, changed, may_draft
    assert is_for_pace(facts) == counts
