"""How many tokens a draft model is asked for, on machines whose ticks cost what is said here."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.drafted_texts import SIZES
from umaserve.drafts import balance, pace, rates, worth
from umaserve.drafts.wanted import MOST, MOST_EACH, Wanted
from umaserve.policy.cost.model import CostModel, learn

# one row and more of a dense 8B where reading the weights is most of a tick, and of a processor
LAPTOP = [42.0 + 0.4 * n for n in range(65)]
CPU = [0, 15, 42, 53, 59, 78, 80, 78, 64] + [8.0 * n for n in range(9, 65)]


def play(
    prices: list[float], step_ms: float, right: float, tokens: int = 3000, rows: int = 1
) -> tuple[float, float]:
    """(Tokens a second over those without, share of the drafted that were right).

    A draft is right with the chance ``right``, whatever came before.
    """
    cost, wanted = CostModel.unknown(), Wanted.allocate(rows)
    for size in SIZES:
        for _ in range(8):
            learn(cost, 0, size, 0, 0.0, prices[size])
    terms, kept, dice = wanted.terms, wanted.kept, random.Random(1)
    terms.rows, terms.room, terms.most_ms, terms.step_ms = rows, MOST, 50.0, step_ms
    wanted.balance_ms[:] = prices[rows]
    lanes = np.zeros(rows, np.int32)
    drafted = accepted = done = 0
    ms = 0.0
    while done < tokens:
        for s in range(rows):
            wanted.rows[s], wanted.same[s], wanted.most[s] = s, rates.BY_MODEL, MOST_EACH
            rates.hope(wanted.rates, s)
        given = int(worth.choose(wanted, cost, lanes))
        wall = prices[rows + given] + step_ms * max(wanted.counts)
        for s in range(rows):
            count, good = int(wanted.counts[s]), 0
            while good < count and dice.random() < right:
                good += 1
            for j in range(min(good + 1, count)):
                rates.note(wanted.rates, s, rates.BY_MODEL + j, float(j < good))
            balance.settle_balance.py_func(wanted, s, 1 + good, wall)
            drafted, accepted, done = drafted + count, accepted + good, done + 1 + good
        ms += wall
        pace.note_change(kept, rows + given, wall)
    return done / ms / (rows / prices[rows]), accepted / max(drafted, 1)


@pytest.mark.parametrize(("right", "least"), [(0.9, 2.2), (0.75, 1.6), (0.6, 1.2)])
def test_a_small_model_gains_where_rows_are_cheap(right: float, least: float) -> None:
    assert play(LAPTOP, 2.6, right)[0] > least


@pytest.mark.parametrize("right", [0.9, 0.6, 0.2, 0.0])
@pytest.mark.parametrize(("prices", "step_ms"), [(LAPTOP, 2.6), (LAPTOP, 40.0), (CPU, 1.5)])
def test_it_costs_nothing_where_it_gains_nothing(
    prices: list[float], step_ms: float, right: float
) -> None:
    assert play(prices, step_ms, right)[0] > 0.97


def test_several_rows_have_some_in_one_tick() -> None:
    assert play(LAPTOP, 2.6, 0.8, rows=4)[0] > 1.5


@pytest.mark.parametrize(
    ("prices", "step_ms", "right", "could"),
    [(LAPTOP, 2.6, 0.7, True), (LAPTOP, 2.6, 0.1, False), (LAPTOP, 40.0, 0.9, False),
     (CPU, 1.5, 0.8, False)],
)  # fmt: skip
def test_a_text_is_read_where_drafts_could_gain(
    prices: list[float], step_ms: float, right: float, could: bool
) -> None:
    cost, wanted = CostModel.unknown(), Wanted.allocate(1)
    for size in SIZES:
        for _ in range(8):
            learn(cost, 0, size, 0, 0.0, prices[size])
    wanted.terms.rows, wanted.terms.room, wanted.kept.without_ms = 1, 64, prices[1]
    assert worth.could_gain(wanted, cost, right, step_ms) == could
