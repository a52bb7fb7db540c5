"""Records of rows that tokens may be drafted for, and state remembered from tick to tick."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.record import Record
from umaserve.policy.cost.model import N_ROWS

from .rates import Rates

MOST_EACH = 31  # tokens that are drafted for a row in one tick
MOST = 64  # that all rows of a tick have together
PLAIN = 0  # instead of the class of a size: without drafts
IMPOSSIBLE = -1e30  # instead of what a size is worth
ACCOUNTS = 256  # of programs, by a part of their number; a power of two


class Terms(Record):
    """The tick that is planned."""

    mode: int
    rows: int  # that decode
    prompt: int  # tokens
    past: float  # KV cells that a token attends to
    room: int  # tokens that may be drafted; 0 where anybody else runs
    limit_ms: float  # what the guard allows; 0 = it says nothing
    most_ms: float  # that a tick with drafts may take; 0 = anything
    lane: int  # whose rows get some
    step_ms: float  # that a draft model takes for a token of each row
    late: int  # tokens that it has to read before
    most_each: int  # drafts of a row; set once
    alike: int  # 1: all rows of a tick have equally many, or none has any; set once


class Kept(Record):
    """State remembered from tick to tick."""

    tokens: int  # of the last tick
    given: int  # of these, drafted ones
    change_ms: float  # what a change of that number costs
    change_left: int  # ticks to come that pay for the last one
    changing_ms: float  # what the last one has cost so far
    got: float  # tokens that a tick has brought lately
    took_ms: float  # what such a tick has taken
    paces: float  # ticks that these two rest on
    pace_rows: int  # rows of those
    price_ms: float  # of the tick that is under way, by prediction; 0 = unknown
    is_guess: int  # 1: no tick of that size was measured yet
    without_ms: float  # the same without drafts
    round_ms: float  # that each token which is verified takes, behind the tick itself


class Sizes(NamedTuple):
    """Sizes that the tick may have, by class of their rows (`ROW_EDGES`); PLAIN: without drafts.

    ``worth_ms`` float64: what its tokens are worth, less its price; IMPOSSIBLE where it may not be.
    ``lasting_ms`` float64: the same of a span of ticks that this one is a part of.  ``ahead_ms``
    float64: how far it is ahead of the present size.  ``given`` int32: drafted tokens.  ``ms`` and
    ``steps_ms`` float64: what the tick takes, and of that a draft model.
    """

    worth_ms: np.ndarray
    lasting_ms: np.ndarray
    ahead_ms: np.ndarray
    ms: np.ndarray
    steps_ms: np.ndarray
    given: np.ndarray

    @classmethod
    def allocate(cls) -> Sizes:
        return cls._make([*(np.zeros(N_ROWS) for _ in range(5)), np.zeros(N_ROWS, np.int32)])


class Wanted(NamedTuple):
    """Rows that tokens may be drafted for, and what is found of each; by row of the table but for
    ``rows`` and ``order``.

    ``rows`` int32: all rows that decode.  ``most`` int32: tokens at most.  ``same`` int32: that
    agree.  ``counts`` int32: that are given.  ``run`` int32: its last tokens that came as the text
    had said.  ``next`` float64: how likely the next one is right.  ``gain`` float64: tokens to be
    expected of those given.  ``balance_ms`` float64: time that drafts have saved the row.
    ``account`` int32: of its program.  ``debt_ms`` float64[ACCOUNTS]: the balance of a program's
    last request where that is below 0, else 0.
    ``order`` int32[MOST]: who got each, while they are given.
    """

    rows: np.ndarray
    most: np.ndarray
    same: np.ndarray
    counts: np.ndarray
    run: np.ndarray
    next: np.ndarray
    gain: np.ndarray
    balance_ms: np.ndarray
    account: np.ndarray
    debt_ms: np.ndarray
    order: np.ndarray
    sizes: Sizes
    rates: Rates
    kept: Kept
    terms: Terms

    @classmethod
    def allocate(cls, n_slots: int) -> Wanted:
        whole = [np.zeros(n_slots, np.int32) for _ in range(5)]
        real = [np.zeros(n_slots) for _ in range(3)]
        account, debt_ms = np.arange(n_slots, dtype=np.int32), np.zeros(ACCOUNTS)
        order, sizes = np.zeros(MOST, np.int32), Sizes.allocate()
        rates, kept, terms = Rates.fresh(n_slots), Kept.zeros(), Terms.zeros()
        terms.most_each = MOST_EACH
        return cls._make([*whole, *real, account, debt_ms, order, sizes, rates, kept, terms])
