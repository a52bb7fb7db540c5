"""Records of drafted tokens, which ticks hand from one phase to the next."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from umaserve.drafts.index import Index
from umaserve.drafts.ring import Ring
from umaserve.drafts.wanted import MOST_EACH, Wanted
from umaserve.jit.record import Record

# ``Marks.way``
NEVER = 0
ALWAYS = 1  # wherever the text has said the same before
WHERE_IT_PAYS = 2
SHORT_ANSWER = 32  # tokens of an answer for which none are drafted, but for trials
WAYS = {"off": NEVER, "ngram": ALWAYS, "draft": ALWAYS, "mtp": ALWAYS, "auto": WHERE_IT_PAYS}
MODEL_ALONE = "draft", "mtp"  # ways in which no text is looked up


def domain_number(domain: str | None) -> int:
    """Number (int64) of a trust domain in compiled code; 0 = nobody's."""
    if domain is None:
        return 0
    digest = hashlib.blake2b(domain.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


class Marks(Record):
    """Figures of all rows together."""

    way: int
    only_model: int  # 1: no text is looked up, a draft model or the heads say it all
    rows: int  # of the tick that decode
    given: int  # tokens that it has for them
    taken: int  # of these, those that were verified and got their row another token


class Drafts(NamedTuple):
    """Drafted tokens of the tick that is under way, by row of the session table.

    ``tokens`` int32[rows, MOST_EACH]: how the text may go on, of which the tick has
    ``wanted.counts``.  ``right`` int32[rows]: how many of them were verified.  ``output``
    int32[rows]: which of the tick's logits are the first of the row.  ``found_at`` int32[rows]:
    tokens of the row when something was found; 0 = nothing was.  ``found_same`` int32[rows]: how
    many agreed.  ``domain`` int64[rows]: whose texts it may go on as; 0 = its own only.
    """

    texts: Index
    ring: Ring
    wanted: Wanted
    tokens: np.ndarray
    right: np.ndarray
    output: np.ndarray
    found_at: np.ndarray
    found_same: np.ndarray
    domain: np.ndarray
    marks: Marks

    @classmethod
    def allocate(
        cls, n_slots: int, positions: int, way: int, only_model: bool = False
    ) -> Drafts:
        """With next to nothing in it where nothing is ever drafted."""
        rows, marks = n_slots if way else 1, Marks.zeros()
        marks.way = way
        marks.only_model = only_model
        by_row = [np.zeros(n_slots, np.int32) for _ in range(4)]
        texts, ring = Index.allocate(rows, positions if way else 1), Ring.allocate(way != NEVER)
        tokens, domain = np.zeros((rows, MOST_EACH), np.int32), np.zeros(n_slots, np.int64)
        return cls._make([texts, ring, Wanted.allocate(n_slots), tokens, *by_row, domain, marks])
