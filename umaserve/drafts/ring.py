"""Newest texts of all trust domains, in a ring with one index: a row drafts from its own domain's.

Texts follow one another, with a mark between two.  A full ring overwrites its oldest tokens.
Places are counted from the first token ever, so an overwritten place is known by its number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit
from umaserve.jit.record import Record

from .index import CHAINED, LONGEST, LOOKS, mixed

SIZE = 1 << 16  # tokens
BUCKETS = 1 << 15  # hashes
MOST_OF_ONE = SIZE // 4  # tokens of one text, its last
FEWEST_SHARED = 5  # tokens that have to agree: more is found by chance than in one text
BETWEEN = -2  # between two texts; no token


class Written(Record):
    """How far the ring is."""

    tokens: int  # ever, marks between texts among them


class Ring(NamedTuple):
    """``tokens`` int32[SIZE], ``domain`` int64[SIZE]: whose text each is of.  ``older`` int64[SIZE]
    and ``newest`` int64[BUCKETS]: places with the same hash, as `umaserve.drafts.index`."""

    tokens: np.ndarray
    domain: np.ndarray
    older: np.ndarray
    newest: np.ndarray
    written: Written

    @classmethod
    def allocate(cls, is_used: bool) -> Ring:
        size, buckets = (SIZE, BUCKETS) if is_used else (1, 1)
        return cls(
            np.full(size, BETWEEN, np.int32), np.zeros(size, np.int64), np.zeros(size, np.int64),
            np.zeros(buckets, np.int64), Written.zeros(),
        )  # fmt: skip


@njit(nogil=True, cache=True)
def remember(ring, domain, tokens, first, n):
    """Add ``tokens`` (int32) [first, n) of a text; of a long one the last MOST_OF_ONE."""
    _write(ring, domain, BETWEEN)
    first = max(first, n - MOST_OF_ONE)
    for i in range(first, n):
        _write(ring, domain, tokens[i])
        if i - first >= CHAINED - 1:
            place = ring.written.tokens - 1
            bucket = mixed(tokens, i) & (BUCKETS - 1)
            ring.older[place % SIZE] = ring.newest[bucket]
            ring.newest[bucket] = place


@njit(**INNER)
def _write(ring, domain, token):
    at = ring.written.tokens % SIZE
    ring.tokens[at], ring.domain[at], ring.older[at] = token, domain, 0
    ring.written.tokens += 1


@njit(nogil=True, cache=True)
def find_shared(ring, domain, tokens, n):
    """Where a text of this domain has what the last of ``n`` tokens are: as `find` of an index.

    (0, 0) where there is none of FEWEST_SHARED tokens, or nothing follows it.
    """
    best = length = 0
    if n < FEWEST_SHARED:
        return best, length
    written = ring.written.tokens
    place = ring.newest[mixed(tokens, n - 1) & (BUCKETS - 1)]
    for _ in range(LOOKS):
        if place == 0 or place <= written - SIZE + LONGEST:
            break
        at = place % SIZE
        if ring.domain[at] == domain and ring.tokens[(at + 1) % SIZE] != BETWEEN:
            same, most = 0, min(LONGEST, n)
            while same < most and ring.tokens[(at - same) % SIZE] == tokens[n - 1 - same]:
                same += 1
            if same >= FEWEST_SHARED and same > length and place + 1 < written:
                best, length = place + 1, same
        place = ring.older[at]
    return best, length


@njit(nogil=True, cache=True)
def copy_shared(ring, place, out, most):
    """Fill ``out`` int32 with up to ``most`` tokens of a text from ``place`` on; how many."""
    for i in range(most):
        token = ring.tokens[(place + i) % SIZE]
        if place + i >= ring.written.tokens or token == BETWEEN:
            return i
        out[i] = token
    return most
