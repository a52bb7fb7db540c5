"""How often a text goes on as it did before, by how many tokens agree.

This is looked at with each token, whether tokens were drafted or not.  So a row whose text repeats
nothing costs no ticks to find out, and a row that begins to repeat is noticed at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit

# tokens that agree: at least, in each class
EDGES = np.array([0, 1, 2, 3, 4, 6, 10, 16, 24], np.int64)
# believed before anything is known
FIRST = np.array([0.02, 0.05, 0.1, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9, 0.7])
KINDS = EDGES.size + 1
BY_MODEL = -1000  # instead of a number of tokens that agree: a draft model says what is next
MODEL = KINDS - 1  # the class of that
BELIEVED = 4.0  # looks that what is known of all rows counts as for a new one
SLOWEST = 1 / 32  # weight of a look at least
MOST_SURE = 0.98
HOPE = 1 / 512  # of the way back to what was believed at first, a tick: to be tried again


class Rates(NamedTuple):
    """``right`` float64[rows + 1, KINDS]: share of the tokens that were the next as before.
    ``seen`` float64[rows + 1, KINDS]: how many looks that rests on.  The last row is all rows'."""

    right: np.ndarray
    seen: np.ndarray

    @classmethod
    def fresh(cls, rows: int) -> Rates:
        return cls(np.tile(FIRST, (rows + 1, 1)), np.full((rows + 1, KINDS), BELIEVED))


@njit(nogil=True, cache=True)
def kind_of(same):
    """The class of so many tokens that agree, or of BY_MODEL and any number more."""
    if same < 0:
        return MODEL
    kind = MODEL - 1
    while EDGES[kind] > same:
        kind -= 1
    return kind


@njit(nogil=True, cache=True)
def forget_row(rates, row):
    """Another text: as much is known of it as of all."""
    everybody = rates.right.shape[0] - 1
    for kind in range(KINDS):
        rates.right[row, kind] = rates.right[everybody, kind]
        rates.seen[row, kind] = min(rates.seen[everybody, kind], BELIEVED)


@njit(nogil=True, cache=True)
def note(rates, row, same, right):
    """Take into account whether (``right`` 0 or 1) the next token was that of the place found."""
    kind = kind_of(same)
    everybody = rates.right.shape[0] - 1
    _count(rates, row, kind, right)
    _count(rates, everybody, kind, right)


@njit(**INNER)
def _count(rates, row, kind, right):
    seen = rates.seen[row, kind] + 1.0
    rates.seen[row, kind] = seen
    rates.right[row, kind] += max(1.0 / seen, SLOWEST) * (right - rates.right[row, kind])


@njit(nogil=True, cache=True)
def chance(rates, row, same):
    """How likely the next token is that of the place found."""
    return min(rates.right[row, kind_of(same)], MOST_SURE)


@njit(nogil=True, cache=True)
def hope(rates, row):
    """A draft model that was wrong may be right about another part of the text.

    What it would have said is not looked at, unlike what a text has said before.
    """
    rates.right[row, MODEL] += HOPE * (FIRST[MODEL] - rates.right[row, MODEL])
