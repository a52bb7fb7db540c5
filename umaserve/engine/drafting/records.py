"""What the ticks know of drafted tokens, and hand from one phase to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.drafts.index import Index
from umaserve.drafts.worth import MOST_EACH, Wanted
from umaserve.jit.record import Record

# ``Marks.way``
NEVER = 0
ALWAYS = 1  # wherever the text has said the same before
WHERE_IT_PAYS = 2
WAYS = {"off": NEVER, "ngram": ALWAYS, "auto": WHERE_IT_PAYS}


class Marks(Record):
    """Of all rows together."""

    way: int
    rows: int  # of the tick that decode
    given: int  # tokens that it has for them
    taken: int  # of these, those that were verified and got their row another token


class Drafts(NamedTuple):
    """Drafted tokens of the tick that is under way, by row of the session table.

    ``tokens`` int32[rows, MOST_EACH], of which the tick has ``wanted.counts``.  ``right``
    int32[rows]: how many of them were verified.  ``output`` int32[rows]: which of the tick's logits
    are the first of the row.  ``place`` int32[rows]: where the text goes on as it may here.
    ``place_same`` int32[rows]: how many tokens agreed there.  ``known`` int32[rows]: tokens of the
    row when that was found; 0 = it was not.
    """

    texts: Index
    wanted: Wanted
    tokens: np.ndarray
    right: np.ndarray
    output: np.ndarray
    place: np.ndarray
    place_same: np.ndarray
    known: np.ndarray
    marks: Marks

    @classmethod
    def allocate(cls, n_slots: int, positions: int, way: int) -> Drafts:
        """With next to nothing in it where nothing is ever drafted."""
        rows, marks = n_slots if way else 1, Marks.zeros()
        marks.way = way
        by_row = [np.zeros(n_slots, np.int32) for _ in range(5)]
        texts, wanted = Index.allocate(rows, positions if way else 1), Wanted.allocate(n_slots)
        tokens = np.zeros((rows, MOST_EACH), np.int32)
        return cls._make([texts, wanted, tokens, *by_row, marks])
