"""Masks: which tokens a constraint allows next, one bit each.

Token i has bit ``i % 32`` of word ``i // 32``.  Whatever the bit forbids becomes -inf in the row,
which belongs to us until the next ``llama_decode``.
"""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import njit

from .select import NEGATIVE_INFINITY

WORD = 32  # tokens of a word
LATE = -1  # instead of a mask's address: it is not there yet


def words_of(n_vocab: int) -> int:
    """How many words a mask of ``n_vocab`` tokens has."""
    return -(-n_vocab // WORD)


def allows(mask: np.ndarray, token: int) -> bool:
    """Whether ``mask`` int32[words] lets a token come."""
    return bool((int(mask[token // WORD]) >> (token % WORD)) & 1)


def allow(mask: np.ndarray, tokens: list[int]) -> None:
    """Let these come, too."""
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token // WORD] |= np.uint32(1 << token % WORD)


def forbid(mask: np.ndarray, tokens: list[int]) -> None:
    """Let none of these come."""
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token // WORD] &= np.uint32(~(1 << token % WORD) & 0xFFFFFFFF)


@njit(nogil=True, cache=True)
def keep_allowed(row, words):
    """Make every logit of ``row`` float32[n_vocab] -inf whose bit in ``words`` int32 is 0."""
    n = row.shape[0]
    for word in range(n // WORD):
        bits, start = words[word], word * WORD
        if bits == -1:
            continue
        if bits == 0:
            for i in range(start, start + WORD):
                row[i] = NEGATIVE_INFINITY
            continue
        for i in range(WORD):  # no branch, so that it is done for several at once
            row[start + i] = row[start + i] if (bits >> i) & 1 else NEGATIVE_INFINITY
    for i in range(n - n % WORD, n):
        if not (np.int64(words[n // WORD]) >> (i % WORD)) & 1:
            row[i] = NEGATIVE_INFINITY
