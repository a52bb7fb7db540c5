"""Finding the few that can win: block maxima, thresholds, gathering.

A row is read once for the largest value of each block of 64.  At least k logits reach the k-th
largest of these maxima.  So no logit below it can be among the k largest, and blocks whose maximum
is below it are never looked at again.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from umaserve.jit.compiled import INNER, njit, pointer

from .counted import TAKEN
from .vector import (
    BLOCK,
    block_at_least,
    block_max,
    count_bits,
    float_bits,
    float_of_bits,
    lowest_bit,
)

NEGATIVE_INFINITY = np.float32(-np.inf)
LOWEST = np.float32(np.finfo(np.float32).min)
SORTED_K = 256  # up to this k the winners are sorted; above, only chosen


@njit(nogil=True, inline="always", _nrt=True)
def row_at(address, n):
    """float32[n] view of the memory at ``address``; borrowed, nothing is copied."""
    return carray(pointer(address), (n,), np.float32)


@njit(**INNER)
def blocks_of(n):
    """How many blocks an array of ``n`` has, the last one perhaps unfinished."""
    return (n + BLOCK - 1) // BLOCK


@njit(nogil=True, cache=True)
def largest(values, count):
    """Largest of ``values[:count]``; -inf where there is none but NaN."""
    full = count - count % BLOCK
    best = NEGATIVE_INFINITY
    for start in range(0, full, BLOCK):
        top = block_max(values, start)
        best = top if top > best else best
    for i in range(full, count):
        best = values[i] if values[i] > best else best
    return best


@njit(nogil=True, cache=True)
def find_maxima(row, maxima):
    """The largest value of each block of ``row`` into ``maxima``; returns the largest of all.

    ``maxima`` float32: a multiple of 64 entries; those behind the row's blocks become -inf.
    """
    n = row.shape[0]
    full = n // BLOCK
    for block in range(full):
        maxima[block] = block_max(row, block * BLOCK)
    if full * BLOCK < n:
        best = NEGATIVE_INFINITY
        for i in range(full * BLOCK, n):
            best = row[i] if row[i] > best else best
        maxima[full] = best
        full += 1
    for block in range(full, blocks_of(full) * BLOCK):
        maxima[block] = NEGATIVE_INFINITY
    return largest(maxima, blocks_of(full) * BLOCK)


@njit(nogil=True, cache=True)
def has_numbers(row):
    """Whether a logits row says anything: it has a number, and not all of it is the same.

    Two logits are looked at, more only where these do not tell.  All of a row is NaN where anything
    before the last matrix product was NaN.  All of it is 0 where the product quantises what it is
    given.  A NaN is rounded to 0 there, and so is everything where one value is infinite.
    """
    first = row[0]
    number = NEGATIVE_INFINITY < first < np.inf
    for i in range(1, row.shape[0]):
        value = row[i]
        if value != first and (
            NEGATIVE_INFINITY < value < np.inf or number and value == NEGATIVE_INFINITY
        ):
            return True
    return number and row.shape[0] == 1


@njit(nogil=True, cache=True)
def at_least(row, start, low):
    """Bits of the block at ``start`` whose value is at least ``low``; the block may be cut off."""
    if start + BLOCK <= row.shape[0]:
        return block_at_least(row, start, low)
    mask = np.uint64(0)
    for i in range(start, row.shape[0]):
        if row[i] >= low:
            mask |= np.uint64(1) << np.uint64(i - start)
    return mask


@njit(nogil=True, cache=True)
def argmax(row, maxima, top):
    """Index of the first largest value, as ``llama_sampler_init_greedy`` finds it; 0 if all NaN.

    ``maxima`` and ``top`` are those of ``find_maxima``.
    """
    for group in range(0, blocks_of(row.shape[0]), BLOCK):
        blocks = block_at_least(maxima, group, top)
        if blocks:
            start = (group + lowest_bit(blocks)) * BLOCK
            found = at_least(row, start, top) if start < row.shape[0] else np.uint64(0)
            return start + lowest_bit(found) if found else 0
    return 0


@njit(**INNER)
def count_at_least(values, count, low):
    """How many of ``values[:count]`` are at least ``low``."""
    full = count - count % BLOCK
    reached = 0
    for start in range(0, full, BLOCK):
        reached += count_bits(block_at_least(values, start, low))
    for i in range(full, count):
        reached += values[i] >= low
    return reached


@njit(**INNER)
def kth_threshold(values, count, k, top, slack):
    """A value that at least ``k`` of ``values[:count]`` reach, and at most ``k + slack``.

    More than that only where the k-th largest occurs several times; it is the result then.  Where
    fewer than ``k`` are finite, as behind a mask, LOWEST, which all of these reach.  By bisection:
    nothing is moved.
    """
    if count_at_least(values, count, LOWEST) < k:
        return LOWEST
    high = low = top
    reached = count_at_least(values, count, low)
    step = 1.0
    while reached < k:
        high = low
        low = np.float32(max(top - step, LOWEST))
        step *= 2.0
        reached = count_at_least(values, count, low)
    while reached > k + slack:
        middle = np.float32(0.5 * (float(low) + float(high)))
        if not low < middle < high:
            break
        inside = count_at_least(values, count, middle)
        if inside >= k:
            low, reached = middle, inside
        else:
            high = middle
    return low


@njit(**INNER)
def gather_from(row, low, work):
    """Copy every entry of ``row`` of at least ``low`` to ``work``, in id order; returns how many.

    ``work.maxima`` are those of ``find_maxima``.
    """
    ids, values = work.ids, work.values
    n = row.shape[0]
    one = np.uint64(1)
    count = 0
    for group in range(0, blocks_of(n), BLOCK):
        blocks = block_at_least(work.maxima, group, low)
        while blocks:
            start = (group + lowest_bit(blocks)) * BLOCK
            blocks &= blocks - one
            if start >= n:
                break
            found = at_least(row, start, low)
            while found:
                i = start + lowest_bit(found)
                found &= found - one
                ids[count] = i
                values[count] = row[i]
                count += 1
    work.counted[TAKEN] += count
    return count


@njit(**INNER)
def sort_keys(keys, count):
    """Sort ``keys[:count]`` (uint64), smallest first: Shell's method with Ciura's gaps."""
    gap = 1
    while gap * 9 < count * 4:
        gap = gap * 9 // 4 + 1
    while gap > 0:
        for i in range(gap, count):
            key = keys[i]
            at = i
            while at >= gap and keys[at - gap] > key:
                keys[at] = keys[at - gap]
                at -= gap
            keys[at] = key
        gap = 0 if gap == 1 else max(gap * 4 // 9, 1)


@njit(**INNER)
def sort_descending(ids, values, count, keys):
    """Sort the first ``count`` candidates by value, largest first; equal values by id."""
    for i in range(count):
        # a float's bits, turned so that they order as whole numbers do, and largest first
        bits = np.int64(float_bits(values[i]))
        ordered = bits if bits >= 0 else -(bits & 0x7FFFFFFF)
        keys[i] = (np.uint64(0x7FFFFFFF - ordered) << np.uint64(32)) | np.uint64(ids[i])
    sort_keys(keys, count)
    for i in range(count):
        ids[i] = np.int32(keys[i] & np.uint64(0x7FFFFFFF))
        ordered = 0x7FFFFFFF - np.int64(keys[i] >> np.uint64(32))
        bits = ordered if ordered >= 0 else -ordered - 0x80000000
        values[i] = float_of_bits(np.int32(bits))


@njit(**INNER)
def keep_largest(ids, values, count, k, top):
    """Keep exactly the ``k`` largest of the candidates, in their order; of equal ones the first."""
    low = kth_threshold(values, count, k, top, 0)
    above = 0
    for i in range(count):
        above += values[i] > low
    room = k - above  # for those equal to the threshold
    kept = 0
    for i in range(count):
        take = values[i] > low
        if not take and values[i] == low and room > 0:
            take = True
            room -= 1
        if take:
            ids[kept] = ids[i]
            values[kept] = values[i]
            kept += 1
    return kept


@njit(nogil=True, cache=True)
def top_k(row, k, top, work):
    """Copy the ``k`` largest of ``row`` to ``work.ids`` and ``work.values``; returns how many.

    Fewer than ``k`` where the others are -inf, which bans them.  Descending where ``k`` is at most
    SORTED_K, else in id order.  Of equal values the lower id wins.  ``work.maxima`` and ``top`` are
    those of ``find_maxima``.
    """
    ids, values = work.ids, work.values
    n = row.shape[0]
    k = min(k, n)
    n_blocks = blocks_of(n)
    if k <= n_blocks:
        low = kth_threshold(work.maxima, n_blocks, k, top, k // 4 + 8)
    else:
        low = kth_threshold(row, n, k, top, k // 4 + 8)
    count = gather_from(row, low, work)
    if k > SORTED_K or count > 2 * k + BLOCK:
        if count > k:
            count = keep_largest(ids, values, count, k, top)
        if k > SORTED_K:
            return count
    sort_descending(ids, values, count, work.keys)
    return min(count, k)
