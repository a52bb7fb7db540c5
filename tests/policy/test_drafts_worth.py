"""How many tokens are drafted: what pays, what nobody pays for, and what a change costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.drafts import balance as b
from umaserve.drafts import pace
from umaserve.drafts import rates as r
from umaserve.drafts.wanted import MOST, MOST_EACH, Kept, Wanted
from umaserve.drafts.worth import MARGIN, choose
from umaserve.policy.cost.model import CostModel, learn

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
GPU = [1.0 + 0.02 * n for n in SIZES]
CPU = [15.0, 42.0, 53.0, 59.0, 78.0, 80.0, 78.0, 64.0, 80.0, 95.0, 110.0] + [200.0] * 5


def costs(ms: Sequence[float], sizes: Sequence[int] = SIZES) -> CostModel:
    cost = CostModel.unknown()
    for n, each in zip(sizes, ms, strict=True):
        for _ in range(8):
            learn(cost, 0, n, 0, 0.0, each)
    return cost


def a_tick(
    same: Sequence[int], chances: Sequence[float], *, lanes: Sequence[int] = (),
    most: int = MOST_EACH, limit_ms: float = 0.0, room: int = MOST,
) -> tuple[Wanted, np.ndarray]:  # fmt: skip
    """Rows whose ends stood before, with so many tokens, and how likely each goes on like that."""
    n = len(same)
    wanted = Wanted.allocate(max(n, 1))
    wanted.rows[:n], wanted.same[:n], wanted.most[:n] = range(n), same, most
    for s, chance in enumerate(chances):
        wanted.rates.right[s, 1:] = chance
    terms = wanted.terms
    terms.rows, terms.room, terms.limit_ms = n, room, limit_ms
    lane = np.array(lanes or [0] * n, np.int32)
    terms.lane = int(lane.min())
    wanted.kept.tokens = n
    return wanted, lane


def chosen(wanted: Wanted, cost: CostModel, lane: np.ndarray) -> list[int]:
    given_ = choose(wanted, cost, lane)
    n = wanted.terms.rows
    assert given_ == wanted.counts[:n].sum()
    return wanted.counts[:n].tolist()


def test_where_rows_are_nearly_free_a_likely_text_is_drafted() -> None:
    assert chosen(*_with(GPU, a_tick([12], [0.9])))[0] >= 7


def test_a_text_that_does_not_go_on_as_before_is_not_drafted() -> None:
    assert chosen(*_with(GPU, a_tick([12], [0.02]))) == [0]
    assert chosen(*_with(GPU, a_tick([0], [0.9]))) == [0]


def test_on_a_processor_only_what_is_nearly_certain_is_drafted() -> None:
    assert chosen(*_with(CPU, a_tick([12], [0.5]))) == [0]
    assert chosen(*_with(CPU, a_tick([12], [0.97])))[0] >= 7


def _with(
    ms: Sequence[float], tick: tuple[Wanted, np.ndarray]
) -> tuple[Wanted, CostModel, np.ndarray]:
    return tick[0], costs(ms), tick[1]


ROWS = st.lists(
    st.tuples(st.sampled_from([0, 3, 8, 20]), st.floats(0.0, 1.0)), min_size=1, max_size=5
)


@settings(max_examples=200)
@given(
    ROWS, st.lists(st.floats(1.0, 100.0), min_size=len(SIZES), max_size=len(SIZES)),
    st.floats(0.0, 150.0), st.integers(0, MOST), st.integers(0, 15),
)  # fmt: skip
def test_whatever_is_chosen_pays_and_slows_nobody(
    rows: list[tuple[int, float]], ms: list[float], limit_ms: float, room: int,
    most: int,
) -> None:  # fmt: skip
    same, chances = zip(*rows, strict=True)
    wanted, lane = a_tick(
        same, chances, limit_ms=limit_ms, room=room, most=most
    )  # fmt: skip
    cost = costs(ms)
    counts = chosen(wanted, cost, lane)
    total = len(rows) + sum(counts)
    assert max(counts) <= most and sum(counts) <= room
    if not sum(counts):
        return
    price, without = ms[SIZES.index(total)], ms[SIZES.index(len(rows))]
    gains = [1.0 + _expected(wanted, s, counts[s]) for s in range(len(rows))]
    assert sum(gains) / price >= MARGIN * 0.999 * len(rows) / without
    assert total & (total - 1) == 0
    # nobody has gained anything before
    most = -b.DEBT_MOST * without * 1.001
    assert all(gain * without * (1 + b.SLOWED) - price >= most for gain in gains)


def _expected(wanted: Wanted, row: int, count: int) -> float:
    total, chain = 0.0, 1.0
    for j in range(count):
        chain *= float(r.chance(wanted.rates, row, int(wanted.same[row]) + j))
        total += chain
    return total


@settings(max_examples=200)
@given(
    st.floats(0.0, 1.0), st.lists(st.floats(1.0, 40.0), min_size=len(SIZES), max_size=len(SIZES))
)  # fmt: skip
def test_of_one_row_no_other_number_is_better(chance: float, ms: list[float]) -> None:
    wanted, lane = a_tick([12], [chance])
    ms = sorted(ms)
    count = chosen(wanted, costs(ms), lane)[0]

    def worth(given_: int) -> float:
        tokens = 1.0 + _expected(wanted, 0, given_)
        return ms[0] * tokens / (MARGIN if given_ else 1.0) - ms[SIZES.index(1 + given_)]

    # a size has the price of smaller ones where it was measured to be cheaper than these
    assert all(worth(2**i - 1) <= worth(count) + 0.08 * ms[0] for i in range(6))


def test_a_stream_that_others_drafts_have_cost_too_much_is_slowed_no_more() -> None:
    steep = [1.0 + 0.2 * n for n in SIZES]
    wanted, lane = a_tick([20, 0], [0.9, 0.0])
    cost = costs(steep)
    assert chosen(wanted, cost, lane)[0] > 0
    wanted.balance_ms[1] = -b.DEBT_MOST * steep[1]
    assert chosen(wanted, cost, lane) == [0, 0]
    # several may be late by what no reader sees
    wanted.terms.most_ms = 50.0
    assert chosen(wanted, cost, lane)[0] > 0
    wanted.balance_ms[1] = -50.0
    assert chosen(wanted, cost, lane) == [0, 0]


def test_background_is_given_no_more_than_the_guard_allows() -> None:
    steep = [1.0 + 0.2 * n for n in SIZES]
    wanted, lane = a_tick([20], [0.9], lanes=[1])
    assert chosen(wanted, costs(steep), lane)[0] > 3
    wanted.terms.limit_ms = steep[SIZES.index(4)] + 0.1
    assert chosen(wanted, costs(steep), lane) == [3]


def test_a_row_that_drafts_have_cost_too_much_waits_until_it_has_some_again() -> None:
    wanted, lane = a_tick([20], [0.9])
    cost = costs(GPU)
    wanted.balance_ms[0] = -b.MOST * cost.mean[0, 1, 0]
    waits = 0
    while not chosen(wanted, cost, lane)[0]:
        wanted.most[0] = MOST_EACH
        waits += 1
    most = (b.MOST - b.DEBT_MOST) / b.WAITED_OFF
    assert 0.5 * most < waits < 1.5 * most


def test_no_tick_gets_so_long_that_a_reader_sees_it() -> None:
    wanted, lane = a_tick([20], [0.97])
    assert chosen(wanted, costs(CPU), lane)[0] >= 7
    wanted, lane = a_tick([20], [0.97])
    wanted.terms.most_ms = 50.0
    assert chosen(wanted, costs(CPU), lane)[0] <= 1


def test_background_gets_none_beside_streams() -> None:
    wanted, lane = a_tick([20, 20], [0.9, 0.9], lanes=[1, 0])
    assert chosen(wanted, costs(GPU), lane)[0] == 0 < wanted.counts[1]
    wanted, lane = a_tick([20, 20], [0.9, 0.9], lanes=[1, 1])
    assert min(chosen(wanted, costs(GPU), lane)) > 0


def test_what_was_never_measured_is_tried() -> None:
    cost = costs([1.0], [1])
    assert chosen(*_swap(cost, a_tick([20], [0.95])))[0] > 0
    assert chosen(*_swap(CostModel.unknown(), a_tick([20], [0.95]))) == [0]


def _swap(
    cost: CostModel, tick: tuple[Wanted, np.ndarray]
) -> tuple[Wanted, CostModel, np.ndarray]:
    return tick[0], cost, tick[1]


def test_the_number_of_tokens_stays_until_a_change_is_paid_for() -> None:
    wanted, lane = a_tick([20], [0.9])
    cost = costs(GPU)
    wanted.kept.change_ms = 8.0
    counts = []
    for _ in range(40):
        counts.append(chosen(wanted, cost, lane)[0])
        wanted.kept.given, wanted.kept.tokens = counts[-1], 1 + counts[-1]
    changes = [i for i in range(1, 40) if counts[i] != counts[i - 1]]
    assert counts[0] == 0 and len(changes) == 1 and 1 <= changes[0] < 10
    # the text repeats nothing any more: what it has gained is not lost again
    wanted.same[0] = 0
    wanted.balance_ms[0] = 100.0
    for _ in range(200):
        counts.append(chosen(wanted, cost, lane)[0])
        wanted.kept.given, wanted.kept.tokens = counts[-1], 1 + counts[-1]
    assert counts[40] > 0 == counts[-1]
    assert len({*counts[40:]}) == 2


def test_a_prompts_tick_is_no_size_that_drafts_keep() -> None:
    """An editor's prompt of which 13 tokens were new, and a change that costs much."""
    wanted, lane = a_tick([1], [0.05])
    wanted.kept.tokens, wanted.kept.change_ms = 14, 20.0
    assert chosen(wanted, costs(GPU), lane) == [0]


def test_a_program_whose_drafts_were_not_accepted_gets_none_in_its_next_request() -> None:
    wanted, lane = a_tick([12, 12, 12], [0.9, 0.9, 0.9])
    wanted.kept.without_ms = GPU[0]
    for row, program in ((0, -7), (1, 8)):
        b.begin_balance.py_func(wanted, row, program)
    for _ in range(8):
        b.settle_balance.py_func(wanted, 0, 1, 3.0)
    b.begin_balance.py_func(wanted, 2, -7)  # of the first row's program
    assert wanted.balance_ms[2] == wanted.balance_ms[0] < wanted.balance_ms[1]
    given = chosen(wanted, costs(GPU), lane)
    assert given[0] == given[2] == 0 < given[1]


def test_what_drafts_have_saved_a_program_is_no_allowance_of_its_next_request() -> None:
    wanted, _ = a_tick([12, 12], [0.9, 0.9])
    wanted.kept.without_ms = 1.0
    b.begin_balance.py_func(wanted, 0, 3)
    for _ in range(20):
        b.settle_balance.py_func(wanted, 0, 8, 1.5)
    b.begin_balance.py_func(wanted, 1, 3)
    assert wanted.balance_ms[1] == b.FIRST < wanted.balance_ms[0]


def test_a_run_that_one_tick_would_have_had_counts_once() -> None:
    """Eight tokens that come as expected are one tick of eight, and no eight of them."""
    cost, counts = costs(GPU), dict[bool, list[int]]()
    for is_one_run in (True, False):
        wanted, lane = a_tick([20], [0.9], most=7)
        wanted.kept.change_ms = 8.0
        for i in range(8):
            wanted.run[0] = i if is_one_run else 0
            counts.setdefault(is_one_run, []).append(chosen(wanted, cost, lane)[0])
            wanted.most[0] = 7
    assert not any(counts[True]) and any(counts[False])


def test_what_a_change_costs_is_learned_from_two_ticks() -> None:
    kept = Kept.zeros()
    kept.price_ms, kept.tokens = 1.0, 1
    for tokens, ms in ((1, 1.0), (8, 3.0), (8, 2.0), (8, 1.0), (8, 1.0)):
        pace.note_change(kept, tokens, ms)
    assert kept.change_ms == pytest.approx(3.0)
    for _ in range(100):
        pace.note_change(kept, 8, 1.5)
    assert kept.change_ms == pytest.approx(3.0)
    for i in range(100):
        pace.note_change(kept, 8 if i % 2 else 1, 1.5)  # never the same twice
    assert kept.change_ms == pytest.approx(0.5, abs=0.1)


def test_a_rate_is_that_of_the_newest_looks_and_a_new_row_begins_with_all_rows() -> None:
    rates = r.Rates.fresh(2)
    for i in range(400):
        r.note(rates, 0, 12, float(i % 4 > 0))
    assert r.chance(rates, 0, 12) == pytest.approx(0.75, abs=0.05)
    assert r.chance(rates, 1, 12) == r.FIRST[r.kind_of(12)]
    r.forget_row(rates, 1)
    assert r.chance(rates, 1, 12) == pytest.approx(0.75, abs=0.05)
    for _ in range(20):
        r.note(rates, 1, 12, 0.0)
    assert r.chance(rates, 1, 12) < 0.2 < r.chance(rates, 0, 12)


@given(rows=ROWS, room=st.integers(0, MOST), most=st.integers(0, 7))
def test_rows_that_must_have_equally_many_do(
    rows: list[tuple[int, float]], room: int, most: int
) -> None:
    wanted, lane = a_tick([same for same, _ in rows], [p for _, p in rows], room=room, most=most)
    wanted.terms.alike, wanted.terms.most_each = 1, 7
    got = chosen(wanted, costs(GPU), lane)
    assert len(set(got)) == 1 and sum(got) <= room
    assert got[0] in (0, 1, 3, 7) and got[0] <= most


def test_equally_many_are_as_many_as_pay() -> None:
    """Two rows that are likely right; and a row that may have none, which decides for all."""
    wanted, lane = a_tick([20, 20], [0.97, 0.97], most=7, lanes=[0, 1])
    wanted.terms.alike, wanted.terms.most_each = 1, 7
    assert chosen(wanted, costs(GPU), lane) == [7, 7]
    wanted.most[1] = 0
    assert chosen(wanted, costs(GPU), lane) == [0, 0]
