"""Time that drafts have saved each row, and the limit on what they cost other rows.

A row that its own drafts have cost too much gets no drafts for a while, and neither do the next
requests of its program.  A stream that drafts of other rows have cost too much is slowed no more.
No tick then gets longer for drafts than that stream gains by it.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

# so much slower a row may get by its own drafts, and by others': less than the cap lets them
SLOWER, SLOWED = 0.02, 0.1
# ticks that a row has to begin with, and that are remembered, besides some changes of the size
FIRST, MOST, CHANGES_MOST = 1.0, 8.0, 4.0
# so many ticks, and changes, drafts may cost a row; it waits that off, so much of a tick each
DEBT_MOST, DEBT_CHANGES, WAITED_OFF = 3.0, 2.0, 0.01


@njit(**INNER)
def begin_balance(wanted, row, program):
    """Give a new request what it may lose, less what drafts have cost its program.

    A program is known by a part of its number; two that share the part share what drafts cost them.
    """
    wanted.account[row] = program & (wanted.debt_ms.size - 1)
    last_ms = wanted.debt_ms[wanted.account[row]]
    wanted.balance_ms[row] = last_ms if last_ms < 0.0 else FIRST * wanted.kept.without_ms


@njit(**INNER)
def settle_balance(wanted, row, tokens, wall_ms):
    """A tick with drafts took so long, and the row got so many tokens of it."""
    kept, slower = wanted.kept, SLOWER if wanted.terms.rows == 1 else SLOWED
    gained = tokens * kept.without_ms * (1.0 + slower) - wall_ms
    most = MOST * kept.without_ms + CHANGES_MOST * kept.change_ms
    if wanted.terms.rows > 1:
        most = max(most, 2.0 * wanted.terms.most_ms)
    wanted.balance_ms[row] = min(max(wanted.balance_ms[row] + gained, -most), most)
    wanted.debt_ms[wanted.account[row]] = min(wanted.balance_ms[row], 0.0)


@njit(**INNER)
def wait_off(wanted, row):
    """Another tick of a row; if drafts have cost it too much, it gets none in it."""
    without_ms, balance_ms = wanted.kept.without_ms, wanted.balance_ms[row]
    if balance_ms < -_debt_most(wanted):
        wanted.most[row] = 0
    if balance_ms < 0.0:
        wanted.balance_ms[row] = min(balance_ms + WAITED_OFF * without_ms, 0.0)
        wanted.debt_ms[wanted.account[row]] = wanted.balance_ms[row]


@njit(**INNER)
def is_fair(wanted, lanes, ms):
    """Whether a tick of ``ms`` slows no stream that drafts have cost too much.

    If background has the drafts, it may take no longer than the guard allows either.
    """
    tick, without_ms, most = wanted.terms, wanted.kept.without_ms, _debt_most(wanted)
    for i in range(tick.rows):
        s = wanted.rows[i]
        gained = (1.0 + wanted.gain[s]) * without_ms * (1.0 + SLOWED) - ms
        if lanes[s] == 0 and gained < 0.0 and wanted.balance_ms[s] + gained < -most:
            return False
    return tick.lane == 0 or tick.limit_ms <= 0.0 or ms <= tick.limit_ms


@njit(**INNER)
def _debt_most(wanted):
    """Ms that drafts may have cost a row.  With several rows these are at least ``most_ms``, the
    time that a tick with drafts may take."""
    kept, tick = wanted.kept, wanted.terms
    most = DEBT_MOST * kept.without_ms + DEBT_CHANGES * kept.change_ms
    return most if tick.rows == 1 else max(most, tick.most_ms)
