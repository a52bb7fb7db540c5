"""Arrays through which ticks and makers of masks exchange drafted tokens and their masks.

A tick publishes the tokens that it verifies, under a new number.  The maker of a row's masks
publishes, under that number, how many masks behind these tokens are ready.  A tick therefore never
takes a mask that was made for other drafts, even if the row has changed since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MADE_BITS = 8  # of ``made``, that say how many


class Ahead(NamedTuple):
    """By row of the session table; the form that compiled code takes.

    - ``number`` int64[n_slots]: of the drafts; odd while they are written.  It never goes down.
    - ``at`` int32[n_slots]: tokens of the row that the drafts are behind.
    - ``counts`` int32[n_slots], ``tokens`` int32[n_slots, most]: the drafts.
    - ``made`` int64[n_slots]: the number of the drafts, and how many masks behind them are there.
    - ``masks`` int64[n_slots, most]: their addresses, 0 where all tokens are allowed.

    The ticks write all but the last two, which are the maker's.
    """

    number: np.ndarray
    at: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    made: np.ndarray
    masks: np.ndarray

    @classmethod
    def allocate(cls, n_slots: int, most: int) -> Ahead:
        """``most``: tokens that are drafted for a row in one tick, fewer than 256."""
        assert most < 1 << MADE_BITS
        return cls(
            number=np.zeros(n_slots, np.int64),
            at=np.zeros(n_slots, np.int32),
            counts=np.zeros(n_slots, np.int32),
            tokens=np.zeros((n_slots, most), np.int32),
            made=np.zeros(n_slots, np.int64),
            masks=np.zeros((n_slots, most), np.int64),
        )
