"""Probability mass: softmax sums, drawing, and the sets that top-p and typical-p keep.

Terms are float32, within 3e-7 of themselves; sums are float32 over 64 terms and float64 over
blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit

from .counted import TAKEN
from .select import NEGATIVE_INFINITY, blocks_of, sort_keys
from .vector import (
    BLOCK,
    EXP_FLOOR,
    block_at_least,
    block_exp_moment,
    block_exp_sum,
    block_exp_within,
    block_within,
    count_bits,
    exp_negative,
    float_bits,
    lowest_bit,
)

FEW = 64  # so many candidates are sorted rather than bisected
GUESSES = 10  # interpolated steps before plain bisection
NOTHING = 1e-30  # more than all banned tokens together, less than any other that could be drawn
BAND = np.float32(2.0)  # nats by which the search for a nucleus widens
FARTHEST = np.float32(32.0)  # nats beyond which it takes everything


class Reach(NamedTuple):
    """Extent of ``n`` candidates around a value.

    The first ``sure`` of them lie within ``near`` (float32, nats) and have the probability mass
    ``mass``.  The others are farther than ``near`` and at most ``far`` away (float32); -1 and inf
    where that is not known.
    """

    n: int
    sure: int
    mass: float
    near: float
    far: float


@njit(nogil=True, cache=True)
def exp_sum(values, count, top, inverse):
    """Sum of ``exp((x - top) * inverse)`` over ``values[:count]``."""
    top, inverse = np.float32(top), np.float32(inverse)
    full = count - count % BLOCK
    total = 0.0
    for start in range(0, full, BLOCK):
        total += block_exp_sum(values, start, top, inverse)
    for i in range(full, count):
        total += exp_negative((values[i] - top) * inverse)
    return total


@njit(nogil=True, cache=True)
def exp_moment(values, count, top):
    """Sum of ``exp(x - top) * (x - top)`` over ``values[:count]``."""
    top = np.float32(top)
    full = count - count % BLOCK
    total = 0.0
    for start in range(0, full, BLOCK):
        total += block_exp_moment(values, start, top)
    for i in range(full, count):
        away = max(values[i] - top, np.float32(EXP_FLOOR))
        total += float(exp_negative(away) * away)
    return total


@njit(nogil=True, cache=True)
def draw(values, count, temperature, top, u, sums):
    """Index of the candidate drawn with ``u`` in [0, 1) after a softmax at ``temperature``.

    ``top`` is the largest of ``values[:count]``; ``sums`` float32 scratch, one entry a block.
    """
    inverse = np.float32(1.0 / temperature)
    full = count - count % BLOCK
    total = 0.0
    for start in range(0, full, BLOCK):
        part = block_exp_sum(values, start, top, inverse)
        sums[start // BLOCK] = part
        total += part
    before_tail = total
    for i in range(full, count):
        total += exp_negative((values[i] - top) * inverse)
    target = max(u * total, NOTHING)
    mass = 0.0
    start = full
    if target < before_tail:
        start = 0
        while start < full - BLOCK and mass + float(sums[start // BLOCK]) <= target:
            mass += float(sums[start // BLOCK])
            start += BLOCK
    else:
        mass = before_tail
    last = 0
    for i in range(start, min(start + BLOCK, count)):
        term = exp_negative((values[i] - top) * inverse)
        mass += term
        if values[i] > NEGATIVE_INFINITY:
            last = i
            if mass > target:
                break
    return last


@njit(**INNER)
def mass_within(values, count, top, center, distance):
    """Sum of ``exp(x - top)`` over those of ``values[:count]`` at most ``distance`` away."""
    full = count - count % BLOCK
    total = 0.0
    for start in range(0, full, BLOCK):
        total += block_exp_within(values, start, top, center, distance)
    for i in range(full, count):
        if abs(values[i] - center) <= distance:
            total += exp_negative(values[i] - top)
    return total


@njit(**INNER)
def count_within(values, count, center, distance):
    """How many of ``values[:count]`` are at most ``distance`` away from ``center``."""
    full = count - count % BLOCK
    inside = 0
    for start in range(0, full, BLOCK):
        inside += count_bits(block_within(values, start, center, distance))
    for i in range(full, count):
        inside += abs(values[i] - center) <= distance
    return inside


@njit(**INNER)
def within(row, start, center, distance):
    """Bits of the block at ``start`` that are at most ``distance`` away; it may be cut off."""
    if start + BLOCK <= row.shape[0]:
        return block_within(row, start, center, distance)
    mask = np.uint64(0)
    for i in range(start, row.shape[0]):
        if abs(row[i] - center) <= distance:
            mask |= np.uint64(1) << np.uint64(i - start)
    return mask


@njit(**INNER)
def gather_mass(row, top, center, target, work):
    """Gather the tokens nearest to ``center``, in bands, until their mass passes ``target``.

    Returns a `Reach`, whose ``mass`` is not more than ``target``.  Candidates that are not sure are
    the last band; ``cut_mass`` finds the edge among them.  Within a band ids ascend.
    """
    ids, values = work.ids, work.values
    n = row.shape[0]
    one = np.uint64(1)
    near, far = np.float32(-1.0), BAND
    mass = sure_mass = 0.0
    count = sure = 0
    sure_near = np.float32(-1.0)
    while True:
        first = count
        for group in range(0, blocks_of(n), BLOCK):
            blocks = block_at_least(work.maxima, group, center - far)
            while blocks:
                start = (group + lowest_bit(blocks)) * BLOCK
                blocks &= blocks - one
                if start >= n:
                    break
                found = within(row, start, center, far)
                if near >= 0.0:
                    found &= ~within(row, start, center, near)
                while found:
                    i = start + lowest_bit(found)
                    found &= found - one
                    ids[count] = i
                    values[count] = row[i]
                    count += 1
        work.counted[TAKEN] += count - first
        for i in range(first, count, BLOCK):
            if i + BLOCK <= count:
                mass += block_exp_sum(values, i, top, np.float32(1.0))
            else:
                for j in range(i, count):
                    mass += exp_negative(values[j] - top)
        if mass > target * 1.00001 or far > FARTHEST:
            return Reach(count, sure, sure_mass, sure_near, far)
        if mass <= target:
            sure, sure_mass, sure_near = count, mass, far
        near = far
        far = far + BAND if far < FARTHEST else np.float32(np.inf)


@njit(**INNER)
def cut_mass(reach, top, center, target, beyond, work):
    """Keep the candidates nearest to ``center`` until their mass is ``target``; returns how many.

    The sure candidates of ``reach`` are kept already.  ``beyond``: until the mass is more than the
    target.  The candidate that reaches it stays.  With ``top`` for ``center`` these are the most
    likely.  Their order stays, and decides between equal distances.  Bisection over the distance
    leaves at most FEW to sort, or more where all distances are equal.
    """
    ids, values, keys = work.ids[reach.sure :], work.values[reach.sure :], work.keys
    count, near, far = reach.n - reach.sure, reach.near, reach.far
    mass = 0.0
    if count > FEW:
        if far < np.inf and exp_sum(values, count, top, 1.0) <= target:
            return count
        near, far, mass = _edge(values, count, near, far, top, center, target)
    n_edge = 0
    differ = False
    for i in range(count):
        away = abs(values[i] - center)
        if near < away <= far:
            keys[n_edge] = _key(away, i)
            differ = differ or (keys[n_edge] ^ keys[0]) >> np.uint64(32) != 0
            n_edge += 1
    if differ:
        sort_keys(keys, n_edge)
    last = np.uint64(0)
    any_kept = mass > 0.0
    for j in range(n_edge):
        if any_kept and (mass > target or (mass == target and not beyond)):
            break
        last = keys[j]
        any_kept = True
        mass += exp_negative(values[np.int64(last & np.uint64(0xFFFFFFFF))] - top)
    kept = 0
    for i in range(count):
        away = abs(values[i] - center)
        # no branch, which nothing could predict: what is not kept is written over
        ids[kept] = ids[i]
        values[kept] = values[i]
        kept += (away <= near) | ((away <= far) & (_key(away, i) <= last))
    return kept


@njit(**INNER)
def _edge(values, count, near, far, top, center, target):
    """Distances between which the mass passes ``target``, and the mass within the nearer one.

    A caller that knows ``far`` has made sure that the mass of all is more than ``target``.
    """
    mass, far_mass = 0.0, 0.0
    n_near, n_far = 0, count
    if far < np.inf:
        far_mass = exp_sum(values, count, top, 1.0)
        if near < 0.0:
            part = mass_within(values, count, top, center, np.float32(0.0))
            inside = count_within(values, count, center, np.float32(0.0))
            if part > target:
                far, far_mass, n_far = np.float32(0.0), part, inside
            else:
                near, mass, n_near = np.float32(0.0), part, inside
    else:
        step = np.float32(0.0)
        while step < FARTHEST:
            part = mass_within(values, count, top, center, step)
            if part > target:
                far, far_mass = step, part
                break
            near, mass = step, part
            step = max(np.float32(0.5), step * np.float32(2.0))
        n_far = count_within(values, count, center, far)
        n_near = count_within(values, count, center, near) if near >= 0.0 else 0
    turn = 0
    while n_far - n_near > FEW and near >= 0.0 and far < np.inf:
        middle = np.float32(0.5 * (float(near) + float(far)))
        if turn < GUESSES:
            # where the edge should be if mass grew evenly, and a little to either side in turn
            width = float(far) - float(near)
            guess = near + width * (target - mass) / (far_mass - mass)
            aside = width * (0.25 * FEW) / (n_far - n_near)
            guess = np.float32(guess + aside if turn % 2 == 0 else guess - aside)
            if near < guess < far:
                middle = guess
        turn += 1
        if not near < middle < far:
            break
        part = mass_within(values, count, top, center, middle)
        inside = count_within(values, count, center, middle)
        if part > target:
            far, far_mass, n_far = middle, part, inside
        else:
            near, mass, n_near = middle, part, inside
    return near, far, mass


@njit(**INNER)
def _key(away, i):
    """Orders by distance, then by index: the bits of a float that is not negative order as it."""
    return (np.uint64(float_bits(away)) << np.uint64(32)) | np.uint64(i)
