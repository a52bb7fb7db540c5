"""Counting what the samplers copy: the figures behind ``copy_free_ratio``.

A sampler reads a row where the backend left it.  What it takes out of the row are candidates, and
the logits that a penalty or a bias is about to change.  Up to SURVIVORS of them a row are what a
selection leaves, as a heap would hold them.  More is a copy of that part of the row, and counts in
full.  So does a row that is read anywhere but at the address that libllama gave.  Probabilities and
sort keys are computed from logits, and are no copies.
"""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import njit

SURVIVORS = 256
LOGIT_BYTES = 4

# entries of ``counted``
ROWS_IN_PLACE = 0  # rows read at their address, of which no part was copied
COPIED_BYTES = 1
TAKEN = 2  # logits taken out of the row that is being sampled
WIDTH = 8  # entries, so that two threads' counters share no cache line


def counters() -> np.ndarray:
    """int64[WIDTH], all zero, for one sampling thread."""
    return np.zeros(WIDTH, np.int64)


@njit(nogil=True, cache=True)
def count_row(row, address, counted):
    """Close the account of one row; ``address`` is what ``llama_get_logits_ith`` returned."""
    copied = 0
    if row.ctypes.data != address:
        copied += LOGIT_BYTES * row.shape[0]
    if counted[TAKEN] > SURVIVORS:
        copied += LOGIT_BYTES * counted[TAKEN]
    counted[TAKEN] = 0
    counted[COPIED_BYTES] += copied
    counted[ROWS_IN_PLACE] += copied == 0
