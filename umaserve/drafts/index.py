"""Where a text has said the same before: an index of its own tokens, as LZ77 compressors have.

Each place is entered under a hash of the last CHAINED tokens up to it.  The newest place of a hash
is known by the hash, and each place knows the one before it with the same hash.  Of the last two
tokens, and of the last alone, only the newest place is known.  Behind a change they are the first
to agree again.  A token is entered in a few instructions, so the index keeps up with the text
also while nothing is drafted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit

CHAINED = 3  # tokens that have to agree where several places are looked at
LONGEST = 24  # tokens of which it is looked whether they agree
BUCKETS = 1 << 13  # hashes
LOOKS = 24  # places of one hash that are looked at, the newest first
SHORT = 1 << 12  # hashes of two tokens, and of a single one
CATCH_UP = 1 << 14  # tokens of a text that are entered at once


class Index(NamedTuple):
    """Index of the text of each row of the session table; owned by the caller that made it.

    ``newest`` int32[rows, BUCKETS]: the last place of each hash; 0 = none.  ``short`` int32[rows,
    2, SHORT]: the last place of each hash of a single token, and of two.  ``older`` int32[rows,
    positions]: the place before each place with the same hash.  ``known`` int32[rows]: tokens
    entered.  ``text`` int64[rows, 2]: identifier of the row's text, as `begin` got it.
    """

    newest: np.ndarray
    short: np.ndarray
    older: np.ndarray
    known: np.ndarray
    text: np.ndarray

    @classmethod
    def allocate(cls, rows: int, positions: int) -> Index:
        """Return an index of rows without a text.  Memory that no text has used takes no room."""
        return cls(
            np.zeros((rows, BUCKETS), np.int32), np.zeros((rows, 2, SHORT), np.int32),
            np.zeros((rows, positions), np.int32), np.zeros(rows, np.int32),
            np.full((rows, 2), -1, np.int64),
        )  # fmt: skip


@njit(nogil=True, cache=True)
def begin(index, row, text, part):
    """Forget a row's text where it is another now; returns whether it is.

    ``text`` and ``part`` together are another for each text, and for one that has lost tokens.
    """
    if index.text[row, 0] == text and index.text[row, 1] == part:
        return False
    index.text[row, 0], index.text[row, 1] = text, part
    index.known[row] = 0
    index.newest[row, :] = 0
    index.short[row, :, :] = 0
    return True


@njit(nogil=True, cache=True)
def keep_up(index, row, tokens, n):
    """Enter the first ``n`` of ``tokens`` (int32) that are not entered yet, up to CATCH_UP of them.

    Returns whether all are entered.
    """
    known = index.known[row]
    behind = min(n, known + CATCH_UP)
    for place in range(known, behind):
        if place >= CHAINED - 1:
            bucket = mixed(tokens, place) & (BUCKETS - 1)
            index.older[row, place] = index.newest[row, bucket]
            index.newest[row, bucket] = place
        # the last token has to find the one before it, not itself
        if place >= 2:
            index.short[row, 1, _of_two(tokens, place - 1)] = place - 1
        if place >= 1:
            index.short[row, 0, _of_one(tokens, place - 1)] = place - 1
    index.known[row] = behind
    return behind == n


@njit(nogil=True, cache=True)
def find(index, row, tokens, n):
    """Where the last of ``n`` tokens, all entered, stood before: (place behind them, how many).

    The longest that agrees, of these the newest; how many are 1 to LONGEST.  (0, 0) where there is
    none.
    """
    best = length = 0
    place = index.older[row, n - 1] if n > CHAINED else 0
    for _ in range(LOOKS):
        if place == 0:
            break
        same = 0
        while same < min(LONGEST, place + 1) and tokens[place - same] == tokens[n - 1 - same]:
            same += 1
        if same >= CHAINED and same > length:
            best, length = place + 1, same
            if same == LONGEST:
                break
        place = index.older[row, place]
    if length == 0 and n > 2:
        place = index.short[row, 1, _of_two(tokens, n - 1)]
        if place > 0 and tokens[place] == tokens[n - 1] and tokens[place - 1] == tokens[n - 2]:
            best, length = place + 1, 2
    if length == 0 and n > 1:
        place = index.short[row, 0, _of_one(tokens, n - 1)]
        if tokens[place] == tokens[n - 1] and place < n - 1:
            best, length = place + 1, 1
    return best, length


@njit(nogil=True, cache=True)
def copy_on(tokens, n, place, out, most):
    """Fill ``out`` int32 with the ``most`` tokens that stood from ``place`` on.

    At the end of the ``n`` tokens it goes on with what it has copied, as if these were the text.
    """
    for i in range(most):
        at = place + i
        out[i] = tokens[at] if at < n else out[at - n]


@njit(**INNER)
def mixed(tokens, place):
    """A number, not below 0, of the tokens up to a place."""
    a, b, c = tokens[place - 2], tokens[place - 1], tokens[place]
    number = a * 73_856_093 ^ b * 19_349_663 ^ c * 83_492_791
    return number ^ number >> 17


@njit(**INNER)
def _of_two(tokens, place):
    number = tokens[place - 1] * 73_856_093 ^ tokens[place] * 19_349_663
    return (number ^ number >> 15) & (SHORT - 1)


@njit(**INNER)
def _of_one(tokens, place):
    return tokens[place] & (SHORT - 1)
