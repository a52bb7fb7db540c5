"""How many tokens to draft for a tick: as many as make tokens cheapest.

A drafted token costs a row more in the tick, whose price the cost model knows.  It brings a token
if it is right, and all drafted before it are.  So tokens are given one by one to the row whose next
is likeliest.  That makes the tokens to be expected of each size of the tick.  They are worth what
tokens cost at present.  A size is worth its tokens, less its price.

Where graphs are captured, a change of the size costs as much as some ticks.  So the size stays, and
rows of which little is found are filled up with guesses.  It changes when another size is ahead by
what a change costs.  What that size is worth more is summed up tick by tick.  The sum never falls
below 0 (Page's CUSUM, 1954).  Where a change costs nothing, each tick has the size that is worth
most.

The sizes are powers of two: few, since each is a shape whose price has to be known.  Where all rows
must have equally many tokens, that number is a power of two, and each row gets a token in turn.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.cost.model import N_ROWS, row_class
from umaserve.policy.cost.prediction import is_known, predict

from .balance import is_fair, wait_off
from .pace import another_pace, token_ms
from .rates import BY_MODEL, chance
from .wanted import IMPOSSIBLE, PLAIN

MARGIN = 1.05  # so many times as many tokens a millisecond are worth it
UNKNOWN = 1 / 8  # of the price without: what a row more costs in a tick that was never measured
LONGER = 2.0  # times as long a tick may get for drafts, where it takes more than the budget


@njit(nogil=True, cache=True)
def choose(wanted, cost, lanes):
    """Fill ``wanted.counts`` for the rows of a tick; returns how many tokens are given in all.

    They are ``wanted.terms``' (Terms).  ``lanes`` int32: by row of the table.
    """
    kept, tick, sizes = wanted.kept, wanted.terms, wanted.sizes
    kept.is_guess = 0
    kept.price_ms = kept.without_ms = predict(
        cost, tick.mode, tick.rows, tick.prompt, tick.past
    )
    for i in range(tick.rows):
        s = wanted.rows[i]
        wanted.counts[s], wanted.gain[s] = 0, 0.0
        wait_off(wanted, s)
        wanted.next[s] = chance(wanted.rates, s, wanted.same[s])
    if kept.without_ms <= 0.0 or not is_known(cost, tick.mode, tick.rows, tick.prompt):
        return 0
    # drafts with which the size stays; the size of a tick without any is not kept for some
    here = kept.tokens - tick.rows - tick.prompt if kept.given > 0 else 0
    if here <= 0 and _nothing_found(wanted):
        sizes.ahead_ms[:] = 0.0
        return 0
    given = _weigh(wanted, cost, lanes, here)
    size = _size(wanted, here)
    kept.price_ms = sizes.ms[size] - sizes.steps_ms[size]
    kept.is_guess = not is_known(cost, tick.mode, tick.rows + sizes.given[size], tick.prompt)
    for i in range(sizes.given[size], given):
        wanted.counts[wanted.order[i]] -= 1
    return sizes.given[size]


@njit(**INNER)
def _nothing_found(wanted):
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.same[s] != 0 and wanted.most[s] > 0:
            return False
    return True


@njit(**INNER)
def _weigh(wanted, cost, lanes, here):
    """Say what each size of the tick is worth; returns how many tokens ``wanted.order`` has.

    ``here``: drafted tokens with which the size stays.
    """
    kept, tick, sizes = wanted.kept, wanted.terms, wanted.sizes
    sizes.worth_ms[:] = IMPOSSIBLE
    each_ms, without_ms = token_ms(kept, tick.rows, here), kept.without_ms
    _put(sizes, PLAIN, 0, without_ms, 0.0)
    sizes.worth_ms[PLAIN] = sizes.lasting_ms[PLAIN] = each_ms * tick.rows - without_ms
    tokens = begun = float(tick.rows)
    given, begins, steps_ms = 0, tick.rows, 0.0
    while given < tick.room:
        s = _in_turn(wanted, given) if tick.alike else _likeliest(wanted, lanes)
        if s < 0:
            break
        wanted.order[given] = s
        given += 1
        did = _begins(wanted, s, here)
        before = 1.0 + wanted.gain[s]
        _give_another(wanted, s)
        tokens += 1.0 + wanted.gain[s] - before
        does = _begins(wanted, s, here)
        begins += does - did
        begun += does * (1.0 + wanted.gain[s]) - did * before
        if wanted.same[s] == BY_MODEL:
            steps_ms = max(steps_ms, (tick.late + wanted.counts[s]) * tick.step_ms)
        total = tick.rows + given
        if tick.alike and total % tick.rows != 0:
            continue
        size, even = row_class(total), total // tick.rows if tick.alike else total
        is_taken = sizes.worth_ms[size] > IMPOSSIBLE  # by the present size
        if given != here and (is_taken or even & (even - 1) != 0):
            continue
        ms = _price(cost, tick, given, without_ms)
        ms += (tokens - tick.rows) * kept.round_ms + steps_ms
        if _comes_in_jerks(tick, ms, without_ms) or not is_fair(wanted, lanes, ms):
            continue
        _put(sizes, size, given, ms, steps_ms)
        sizes.worth_ms[size] = each_ms * tokens / MARGIN - ms
        sizes.lasting_ms[size] = each_ms * begun / MARGIN - ms * begins / tick.rows
    return given


@njit(**INNER)
def _give_another(wanted, s):
    wanted.counts[s] += 1
    wanted.gain[s] += wanted.next[s]
    wanted.next[s] *= chance(wanted.rates, s, wanted.same[s] + wanted.counts[s])


@njit(**INNER)
def _begins(wanted, s, here):
    """Whether a row that has as many drafts in each tick would begin one with this token.

    While there are no drafts, each of its tokens is looked at.  With them, those that come as
    expected would be in the tick of the one before.
    """
    return here != 0 or wanted.run[s] % (wanted.counts[s] + 1) == 0


@njit(**INNER)
def _put(sizes, size, given, ms, steps_ms):
    sizes.given[size], sizes.ms[size], sizes.steps_ms[size] = given, ms, steps_ms


@njit(**INNER)
def _size(wanted, here):
    """The size of this tick: the present one, unless another is far enough ahead of it."""
    sizes, kept = wanted.sizes, wanted.kept
    now = -1
    for size in range(N_ROWS):
        if sizes.given[size] == here and sizes.worth_ms[size] > IMPOSSIBLE:
            now = size
    if now < 0:  # it cannot stay
        sizes.ahead_ms[:] = 0.0
        return sizes.worth_ms.argmax()
    best = now
    for size in range(N_ROWS):
        if sizes.worth_ms[size] <= IMPOSSIBLE:
            sizes.ahead_ms[size] = 0.0
            continue
        more_ms = sizes.lasting_ms[size] - sizes.worth_ms[now] if size != now else 0.0
        sizes.ahead_ms[size] = max(sizes.ahead_ms[size] + more_ms, 0.0)
        if sizes.ahead_ms[size] > sizes.ahead_ms[best]:
            best = size
    if best == now or sizes.ahead_ms[best] <= kept.change_ms:
        return now
    sizes.ahead_ms[:] = 0.0
    another_pace(kept)
    return best


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
def _in_turn(wanted, given):
    """Return the row that gets the next token, where all get equally many; -1 if it may not."""
    s = wanted.rows[given % wanted.terms.rows]
    return s if wanted.counts[s] < wanted.most[s] else -1


@njit(**INNER)
def _price(cost, tick, given, without_ms):
    """Predicted ms of a tick with ``given`` drafts; estimated where not measured."""
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
    for given in range(1, min(tick.most_each, tick.room) + 1):
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
