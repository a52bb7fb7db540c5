"""The truncating steps of the chain, over a logits row or the candidates that are left of it.

Order and meaning are llama.cpp's (``llama-sampler.cpp``).  Candidates are two arrays, ``ids`` and
``values`` (raw logits), in no particular order.
"""

from __future__ import annotations

import math

import numpy as np

from umaserve.jit.compiled import njit

from .mass import draw, exp_moment, exp_sum, keep_mass
from .select import LOWEST, NEGATIVE_INFINITY, argmax, gather_from, largest

XTC_MAX_THRESHOLD = 0.5  # above, llama.cpp leaves XTC out: at most one token can be that likely
XTC_STREAM = 0x5851F42D4C957F2D  # sets its random numbers apart from the draw's


@njit(nogil=True, cache=True)
def uniform(seed, index):
    """A number in [0, 1) that depends on ``seed`` and the token's index alone.

    Two rounds of splitmix64 (Steele, Lea, Flood 2014) over a counter.  There is no state to keep,
    so a request that moves to another engine goes on with the same numbers.
    """
    x = np.uint64(seed)
    for step in range(2):
        x += np.uint64(0x9E3779B97F4A7C15)
        if step == 1:
            x += np.uint64(index) * np.uint64(0xD1342543DE82EF95)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return float(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(nogil=True, cache=True)
def typical_p(row, maxima, count, top, p, ids, values, keys, counted):
    """Locally typical sampling (Meister et al. 2022); returns how many are left.

    ``count`` 0: of the whole row.  A token's distance from the entropy, ``|-log p - H|``, is its
    logit's distance from one value.  So nothing needs to be sorted by it.
    """
    if count > 0:
        total = exp_sum(values, count, top, 1.0)
        moment = exp_moment(values, count, top)
    else:
        total = exp_sum(row, row.shape[0], top, 1.0)
        moment = exp_moment(row, row.shape[0], top)
    center = np.float32(top + moment / total)
    return keep_mass(row, maxima, count, top, center, p * total, True, ids, values, keys, counted)


@njit(nogil=True, cache=True)
def top_p(row, maxima, count, top, p, ids, values, keys, counted):
    """The nucleus (Holtzman et al. 2019) of the candidates; of the whole row for ``count`` 0."""
    if count > 0:
        total = exp_sum(values, count, top, 1.0)
    else:
        total = exp_sum(row, row.shape[0], top, 1.0)
    return keep_mass(row, maxima, count, top, top, p * total, False, ids, values, keys, counted)


@njit(nogil=True, cache=True)
def min_p(row, maxima, count, top, p, ids, values, counted):
    """Keep tokens at least ``p`` times as likely as the best; of the whole row for ``count`` 0."""
    low = np.float32(top + np.float32(math.log(p)))
    if count == 0:
        return gather_from(row, maxima, low, ids, values, counted)
    kept = 0
    for i in range(count):
        if values[i] >= low:
            ids[kept] = ids[i]
            values[kept] = values[i]
            kept += 1
    return kept


@njit(nogil=True, cache=True)
def xtc(row, maxima, count, top, threshold, ids, values, counted):
    """Exclude top choices: of those at least ``threshold`` likely, only the least likely stays.

    Returns (count, top).  ``count`` 0: the whole row, in which the excluded become -inf.
    """
    whole = count == 0
    if whole:
        total = exp_sum(row, row.shape[0], top, 1.0)
    else:
        total = exp_sum(values, count, top, 1.0)
    low = LOWEST  # -inf is banned
    if threshold > 0.0:
        low = np.float32(top + math.log(threshold * total))
    likely = gather_from(row, maxima, low, ids, values, counted) if whole else count
    last, last_value, found = -1, top, 0
    for i in range(likely):
        if values[i] >= low:
            found += 1
            if last < 0 or values[i] <= last_value:
                last, last_value = i, values[i]
    if found < 2:
        return count, top
    if whole:
        for i in range(likely):
            if i != last:
                row[ids[i]] = NEGATIVE_INFINITY
        return 0, last_value
    kept = 0
    for i in range(count):
        if i == last or not values[i] >= low:
            ids[kept] = ids[i]
            values[kept] = values[i]
            kept += 1
    return kept, largest(values, kept)


@njit(nogil=True, cache=True)
def mirostat_candidates(row, maxima, top, temperature, mu, ids, values, counted):
    """The tokens whose surprise in bits is at most ``mu``, or the best one; returns how many."""
    total = exp_sum(row, row.shape[0], top, 1.0 / temperature)
    low = np.float32(top + temperature * (math.log(total) - mu * math.log(2.0)))
    if low <= top:
        return gather_from(row, maxima, low, ids, values, counted)
    ids[0] = argmax(row, maxima, top)
    values[0] = top
    return 1


@njit(nogil=True, cache=True)
def mirostat_draw(values, count, top, temperature, tau, eta, mu, u, sums):
    """Mirostat v2 (Basu et al. 2021): (index drawn, the ``mu`` for the next token)."""
    at = draw(values, count, temperature, top, u, sums)
    total = exp_sum(values, count, top, 1.0 / temperature)
    surprise = (math.log(total) - (values[at] - top) / temperature) / math.log(2.0)
    return at, mu - eta * (surprise - tau)
