"""Log-probabilities of what the sampling settings leave to choose from."""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import INNER, njit

from .mass import exp_sum
from .select import NEGATIVE_INFINITY, keep_largest, largest, sort_descending, top_k


@njit(**INNER)
def rate_left(row, token, count, temperature, wanted, work, top_ids, top_logprobs):
    """Log-probability of ``token`` among the candidates that `choose` had; fills the alternatives.

    ``row`` is the adjusted row, and ``count`` as `choose` returned it.  What cannot be drawn is no
    alternative.
    """
    top_ids[:] = -1
    inverse = 1.0 / temperature if temperature > 0.0 else 1.0
    if count == 0:
        top = largest(work.maxima, work.maxima.shape[0])
        total = np.log(exp_sum(row, row.shape[0], top, inverse))
        if wanted > 0:
            count = top_k(row, wanted, top, work)
    else:
        top = largest(work.values, count)
        total = np.log(exp_sum(work.values, count, top, inverse))
        if count > wanted > 0:
            count = keep_largest(work.ids, work.values, count, wanted, top)
        if wanted > 0:
            sort_descending(work.ids, work.values, count, work.keys)
    for i in range(min(count, wanted)):
        if not work.values[i] > NEGATIVE_INFINITY:
            break
        top_ids[i] = work.ids[i]
        top_logprobs[i] = (work.values[i] - top) * inverse - total
    return (row[token] - top) * inverse - total
