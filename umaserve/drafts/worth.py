"""How many tokens to draft for a tick: as many as make its tokens cheapest.

A drafted token costs a row more in the tick, whose price the cost model knows.  It brings a token
if it is right, and all drafted before it are.  So tokens are given one by one to the row whose next
is likeliest, and the number is kept with which a tick's expected tokens cost least time each.

Nobody is made much slower for others: by SLOWED at most.  A row that would be slowed down more has
to have gained as much before (``balance_ms``).  If it has gained little, the tick may be no longer
than the guard allows.  A row that its drafts have cost more than they brought gets none for a
while.  Nobody gets any while others run, such as prompts: what is left of a tick is theirs.

Where graphs are captured, a change of the batch's size costs some ticks.  So the size stays until
the time that is lost by staying has added up to what a change costs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.jit.record import Record
from umaserve.policy.cost.model import ROW_EDGES, is_known, predict, row_class

from .rates import BY_MODEL, Rates, chance

MOST_EACH = 31  # tokens that are drafted for a row in one tick
MOST = 64  # that all rows of a tick have together
HOPELESS = 0.05  # a token less likely to be right is not worth a thought
MARGIN = 1.05  # so many times as many tokens a millisecond are worth it
UNKNOWN = 1 / 8  # of the price without: what a row more costs in a tick that was never measured
SLOWER = 0.02  # so much slower drafts may make a row and count as nothing
SLOWED = 0.1  # so much slower others may make a row: less than the cap lets them
CHANGE_WEIGHT, CHANGE_MOST = 1 / 8, 8.0  # of a new change, and ticks that one costs at most
# ticks that a row has to begin with, that it has gained enough with, and that are remembered
BALANCE_FIRST, BALANCE_RICH, BALANCE_MOST = 1.0, 2.0, 8.0
# a row that drafts have cost so many ticks gets none, until it has waited that off: so much a tick
DEBT_MOST, WAITED_OFF = 3.0, 0.01
LONGER = 2.0  # times as long a tick may get for drafts, where it takes more than the budget
ROUND_WEIGHT = 1 / 16  # of a new tick


class Terms(Record):
    """The tick that is planned."""

    mode: int
    rows: int  # that decode
    prompt: int  # tokens
    past: float  # KV cells that a token attends to
    room: int  # tokens that may be drafted; 0 where anybody else runs
    limit_ms: float  # what the guard allows; 0 = it says nothing
    most_ms: float  # that a tick with drafts may take, or LONGER times one without; 0 = anything
    lane: int  # whose rows get some
    step_ms: float  # that a draft model takes for a token of each row
    late: int  # tokens that it has to read before


class Kept(Record):
    """What is remembered from tick to tick."""

    tokens: int  # of the last tick
    given: int  # of these, drafted ones
    change_ms: float  # what a change of that number costs
    change_left: int  # ticks to come that pay for the last one
    changing_ms: float  # what the last one has cost so far
    lost_ms: float  # by staying with that number, less what it gained
    price_ms: float  # of the tick that is under way, by prediction; 0 = unknown
    without_ms: float  # the same without drafts
    round_ms: float  # that each token which is verified takes, behind the tick itself


class Wanted(NamedTuple):
    """Rows that tokens may be drafted for, and what is found of each; by row of the table but for
    ``rows`` and ``order``.

    ``rows`` int32: all rows that decode.  ``most`` int32: tokens at most.  ``same`` int32: that
    agree.  ``counts`` int32: that are given.  ``next`` float64: how likely the next one is right.
    ``gain`` float64: tokens to be expected of those given.  ``balance_ms`` float64: time that
    drafts have saved the row.  ``order`` int32[MOST]: who got each, while they are given.
    """

    rows: np.ndarray
    most: np.ndarray
    same: np.ndarray
    counts: np.ndarray
    next: np.ndarray
    gain: np.ndarray
    balance_ms: np.ndarray
    order: np.ndarray
    rates: Rates
    kept: Kept
    terms: Terms

    @classmethod
    def allocate(cls, n_slots: int) -> Wanted:
        whole = [np.zeros(n_slots, np.int32) for _ in range(4)]
        real = [np.zeros(n_slots) for _ in range(3)]
        order = np.zeros(MOST, np.int32)
        return cls._make([*whole, *real, order, Rates.fresh(n_slots), Kept.zeros(), Terms.zeros()])


@njit(nogil=True, cache=True)
def choose(wanted, cost, lanes):
    """Fill ``wanted.counts`` for the rows of a tick; returns how many tokens are given in all.

    They are ``wanted.terms``' (Terms).  ``lanes`` int32: by row of the table.
    """
    kept, rates, tick = wanted.kept, wanted.rates, wanted.terms
    kept.price_ms = kept.without_ms = predict(
        cost, tick.mode, tick.rows, tick.prompt, tick.past
    )
    for i in range(tick.rows):
        s = wanted.rows[i]
        wanted.counts[s], wanted.gain[s] = 0, 0.0
        _wait_off(wanted, s)
        wanted.next[s] = chance(rates, s, wanted.same[s])
    if kept.without_ms <= 0.0 or not is_known(cost, tick.mode, tick.rows, tick.prompt):
        return 0
    here = kept.tokens - tick.rows - tick.prompt  # drafts with which the number stays
    if here <= 0 and _nothing_found(wanted):
        return 0
    best, stays, given, expected, steps_ms = 0, -1, 0, 0.0, 0.0
    best_steps_ms = stays_steps_ms = 0.0
    best_rate = stays_rate = tick.rows / kept.without_ms
    best_ms = stays_ms = kept.without_ms
    if here == 0:
        stays = 0
    while given < tick.room:
        s = _likeliest(wanted, lanes)
        if s < 0 or given >= here and wanted.next[s] < HOPELESS:
            break
        wanted.order[given] = s
        given += 1
        wanted.counts[s] += 1
        wanted.gain[s] += wanted.next[s]
        expected += wanted.next[s]
        wanted.next[s] *= chance(rates, s, wanted.same[s] + wanted.counts[s])
        if wanted.same[s] == BY_MODEL:
            steps_ms = max(steps_ms, (tick.late + wanted.counts[s]) * tick.step_ms)
        total = tick.rows + given
        if given != here and ROW_EDGES[row_class(total)] != total:
            continue
        ms = _price(cost, tick, given, kept.without_ms)
        ms += expected * kept.round_ms + steps_ms
        if _comes_in_jerks(tick, ms, kept.without_ms):
            continue
        if not _is_fair(wanted, lanes, ms):
            continue
        rate = (tick.rows + expected) / (MARGIN * ms)
        if given == here:
            stays, stays_rate, stays_ms, stays_steps_ms = given, rate, ms, steps_ms
        if rate > best_rate:
            best, best_rate, best_ms, best_steps_ms = given, rate, ms, steps_ms
    if stays >= 0 and _is_better_to_stay(kept, stays_ms * (best_rate / stays_rate - 1.0)):
        best, best_ms, best_steps_ms = stays, stays_ms, stays_steps_ms
    kept.price_ms = best_ms - best_steps_ms
    for i in range(best, given):
        wanted.counts[wanted.order[i]] -= 1
    return best


@njit(**INNER)
def _wait_off(wanted, s):
    """Another tick of a row; if drafts have cost it too much, it gets none in it."""
    without_ms, balance_ms = wanted.kept.without_ms, wanted.balance_ms[s]
    if balance_ms < -DEBT_MOST * without_ms:
        wanted.most[s] = 0
    if balance_ms < 0.0:
        wanted.balance_ms[s] = min(balance_ms + WAITED_OFF * without_ms, 0.0)


@njit(**INNER)
def _nothing_found(wanted):
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.same[s] != 0 and wanted.most[s] > 0:
            return False
    return True


@njit(**INNER)
def _is_better_to_stay(kept, loses_ms):
    """Whether the number of tokens stays, which loses so much in this tick."""
    kept.lost_ms = max(kept.lost_ms + loses_ms, 0.0)
    if loses_ms > 0.0 and kept.lost_ms > kept.change_ms:
        kept.lost_ms = 0.0
        return False
    return True


@njit(**INNER)
def _likeliest(wanted, lanes):
    """The row whose next token is likeliest to be right; -1 where none may have more."""
    best, found, tick = -1.0, -1, wanted.terms
    for i in range(tick.rows):
        s = wanted.rows[i]
        if wanted.counts[s] < wanted.most[s] and lanes[s] == tick.lane and wanted.next[s] > best:
            best, found = wanted.next[s], s
    return found


@njit(**INNER)
def _price(cost, tick, given, without_ms):
    """What the tick takes with so many drafted tokens, or what it is taken to, if nobody knows."""
    if is_known(cost, tick.mode, tick.rows + given, tick.prompt):
        return predict(cost, tick.mode, tick.rows + given, tick.prompt, tick.past)
    return without_ms * (1.0 + UNKNOWN * given)


@njit(nogil=True, cache=True)
def could_gain(wanted, cost, right, step_ms):
    """Whether drafts of one row would make tokens cheaper, with such a share of them ``right``.

    A draft model takes ``step_ms`` for each.
    """
    tick, without_ms = wanted.terms, wanted.kept.without_ms
    tokens = next_one = 1.0
    for given in range(1, min(MOST_EACH, tick.room) + 1):
        next_one *= right
        tokens += next_one
        ms = _price(cost, tick, given, without_ms) + given * step_ms
        more = (tick.rows - 1 + tokens) / tick.rows
        if more * without_ms > MARGIN * ms and not _comes_in_jerks(tick, ms, without_ms):
            return True
    return False


@njit(**INNER)
def _comes_in_jerks(tick, ms, without_ms):
    """Whether a tick is so long that whoever reads along would see it."""
    return 0.0 < tick.most_ms < ms and ms > LONGER * without_ms


@njit(**INNER)
def _is_fair(wanted, lanes, ms):
    """Whether no interactive row is slower for it than without, as far as it can be helped."""
    tick, without_ms = wanted.terms, wanted.kept.without_ms
    limited = tick.lane != 0
    for i in range(tick.rows):
        s = wanted.rows[i]
        if lanes[s] != 0:
            continue
        gained = (1.0 + wanted.gain[s]) * without_ms * (1.0 + SLOWED) - ms
        if gained < 0.0:
            balance_ms = wanted.balance_ms[s]
            if balance_ms + gained < 0.0:
                return False
            limited = limited or balance_ms < BALANCE_RICH * without_ms
    return not limited or tick.limit_ms <= 0.0 or ms <= tick.limit_ms


@njit(**INNER)
def first_balance(wanted, row):
    """A row begins with so much that it may lose."""
    wanted.balance_ms[row] = BALANCE_FIRST * wanted.kept.without_ms


@njit(**INNER)
def note_rounds(kept, taken, ms):
    """The tokens that were verified in a tick took so long behind it."""
    if taken > 0:
        kept.round_ms += ROUND_WEIGHT * (ms / taken - kept.round_ms)


@njit(**INNER)
def settle_balance(wanted, row, tokens, wall_ms):
    """A tick with drafts took so long, and the row got so many tokens of it."""
    without_ms = wanted.kept.without_ms
    gained = tokens * without_ms * (1.0 + SLOWER) - wall_ms
    most = BALANCE_MOST * without_ms
    wanted.balance_ms[row] = min(max(wanted.balance_ms[row] + gained, -most), most)


@njit(nogil=True, cache=True)
def note_change(kept, tokens, wall_ms):
    """A tick of so many tokens is over: what a change of their number costs, and the tick after.

    Two ticks pay for it where a graph is captured.  A tick whose price was not known, or 0, says
    nothing.
    """
    if tokens != kept.tokens:
        _end_change(kept)
        kept.change_left = 2 if kept.price_ms > 0.0 else 0
    if kept.change_left > 0 and kept.price_ms > 0.0:
        over = max(wall_ms - kept.price_ms, 0.0)
        kept.changing_ms += min(over, CHANGE_MOST * kept.price_ms)
        kept.change_left -= 1
        if kept.change_left == 0:
            _end_change(kept)
    kept.tokens = tokens


@njit(**INNER)
def _end_change(kept):
    if kept.changing_ms > 0.0:
        weight = CHANGE_WEIGHT if kept.change_ms > 0.0 else 1.0
        kept.change_ms += weight * (kept.changing_ms - kept.change_ms)
    kept.changing_ms = 0.0
