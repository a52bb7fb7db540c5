"""The truncating steps of the chain, over a logits row or the candidates that are left of it.

Order and meaning are llama.cpp's (``llama-sampler.cpp``).  Candidates are two arrays of ``work``
(`Scratch`), ``ids`` and ``values`` (raw logits), in no particular order.  ``work.maxima`` and
``top`` are the maxima of the row's blocks, and of the row or its candidates.
"""

from __future__ import annotations

import math

import numpy as np

from umaserve.jit.compiled import INNER, njit

from . import params as P
from .mass import Reach, cut_mass, draw, exp_moment, exp_sum, gather_mass
from .select import LOWEST, NEGATIVE_INFINITY, argmax, gather_from, largest

TEMPERATURE, TAU, ETA, MU = P.TEMPERATURE, P.TAU, P.ETA, P.MU
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


@njit(**INNER)
def typical_p(row, count, top, p, work):
    """Locally typical sampling (Meister et al. 2022); returns how many are left.

    ``count`` 0: of the whole row.  A token's distance from the entropy, ``|-log p - H|``, is its
    logit's distance from one value.  So nothing needs to be sorted by it.
    """
    if count > 0:
        total = exp_sum(work.values, count, top, 1.0)
        moment = exp_moment(work.values, count, top)
    else:
        total = exp_sum(row, row.shape[0], top, 1.0)
        moment = exp_moment(row, row.shape[0], top)
    center = np.float32(top + moment / total)
    return keep_mass(row, count, top, center, p * total, True, work)


@njit(**INNER)
def top_p(row, count, top, p, work):
    """The nucleus (Holtzman et al. 2019) of the candidates; of the whole row for ``count`` 0."""
    if count > 0:
        total = exp_sum(work.values, count, top, 1.0)
    else:
        total = exp_sum(row, row.shape[0], top, 1.0)
    return keep_mass(row, count, top, top, p * total, False, work)


@njit(**INNER)
def keep_mass(row, count, top, center, target, beyond, work):
    """Keep those nearest to ``center`` until their mass is ``target`` (``beyond``: more than it).

    Of the first ``count`` candidates, or of the whole row for 0; returns how many are left.
    """
    if count == 0:
        reach = gather_mass(row, top, center, target, work)
    else:
        reach = Reach(count, np.int64(0), 0.0, np.float32(-1.0), np.float32(np.inf))
    if reach.sure > 0 and (reach.mass > target or (reach.mass == target and not beyond)):
        return reach.sure
    return reach.sure + cut_mass(reach, top, center, target - reach.mass, beyond, work)


@njit(**INNER)
def min_p(row, count, top, p, work):
    """Keep tokens at least ``p`` times as likely as the best; of the whole row for ``count`` 0."""
    low = np.float32(top + np.float32(math.log(p)))
    if count == 0:
        return gather_from(row, low, work)
    ids, values = work.ids, work.values
    kept = 0
    for i in range(count):
        if values[i] >= low:
            ids[kept] = ids[i]
            values[kept] = values[i]
            kept += 1
    return kept


@njit(**INNER)
def xtc(row, count, top, threshold, work):
    """Exclude top choices: of those at least ``threshold`` likely, only the least likely stays.

    Returns (count, top).  ``count`` 0: the whole row, in which the excluded become -inf.
    """
    ids, values = work.ids, work.values
    whole = count == 0
    if whole:
        total = exp_sum(row, row.shape[0], top, 1.0)
    else:
        total = exp_sum(values, count, top, 1.0)
    low = LOWEST  # -inf is banned
    if threshold > 0.0:
        low = np.float32(top + math.log(threshold * total))
    likely = gather_from(row, low, work) if whole else count
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
def mirostat_candidates(row, top, real, work):
    """The tokens whose surprise in bits is at most mu, or the best one; returns how many.

    ``real`` float64[N_REAL]: the row's settings, which hold mu.
    """
    temperature, mu = real[TEMPERATURE], real[MU]
    total = exp_sum(row, row.shape[0], top, 1.0 / temperature)
    low = np.float32(top + temperature * (math.log(total) - mu * math.log(2.0)))
    if low <= top:
        return gather_from(row, low, work)
    work.ids[0] = argmax(row, work.maxima, top)
    work.values[0] = top
    return 1


@njit(nogil=True, cache=True)
def mirostat_draw(count, top, real, u, work):
    """Mirostat v2 (Basu et al. 2021): (index drawn, the mu for the next token)."""
    values, temperature = work.values, real[TEMPERATURE]
    at = draw(values, count, temperature, top, u, work.sums)
    total = exp_sum(values, count, top, 1.0 / temperature)
    surprise = (math.log(total) - (values[at] - top) / temperature) / math.log(2.0)
    return at, real[MU] - real[ETA] * (surprise - real[TAU])
