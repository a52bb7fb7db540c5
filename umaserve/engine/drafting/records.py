"""What the ticks know of drafted tokens, and hand from one phase to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.drafts.index import Index
from umaserve.jit.record import Record

MOST_EACH = 15  # tokens that are drafted for a row in one tick
MOST = 64  # that all rows of a tick have together

# ``Marks.way``
NEVER = 0
ALWAYS = 1  # wherever the text has said the same before
WHERE_IT_PAYS = 2
WAYS = {"off": NEVER, "ngram": ALWAYS, "auto": WHERE_IT_PAYS}


class Marks(Record):
    """Of all rows together."""

    way: int
    given: int  # tokens that this tick has
    taken: int  # of these, those that were verified and got their row another token


class Drafts(NamedTuple):
    """Drafted tokens of the tick that is under way, by row of the session table.

    ``tokens`` int32[rows, MOST_EACH].  ``counts`` int32[rows]: how many of these the tick has; 0
    for all rows between two ticks.  ``right`` int32[rows]: how many of them were verified.
    ``output`` int32[rows]: which of the tick's logits are the next of the row.
    """

    index: Index
    tokens: np.ndarray
    counts: np.ndarray
    right: np.ndarray
    output: np.ndarray
    marks: Marks

    @classmethod
    def allocate(cls, n_slots: int, positions: int, way: int) -> Drafts:
        """With next to nothing in it where nothing is ever drafted."""
        rows, marks = n_slots if way else 1, Marks.zeros()
        marks.way = way
        index = Index.allocate(rows, positions if way else 1)
        return cls(
            index, np.zeros((rows, MOST_EACH), np.int32), np.zeros(n_slots, np.int32),
            np.zeros(n_slots, np.int32), np.zeros(n_slots, np.int32), marks,
        )  # fmt: skip
