"""Sweet spot: how many decoders to merge so that a round that serves them all is shortest.

On a GPU the first rows are nearly free and everybody is merged.  On a processor a single row is
bound by memory and two to seven rows take a slower kernel.  So taking turns is faster for all
of them.  Which, the cost model says; the best split into groups is found exactly, by dynamic
programming over the number of decoders.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .model import row_class
from .prediction import predict

# ticks of a shape after which its cost is doubted less, and not any more
HARDLY_KNOWN, WELL_KNOWN = 8.0, 32.0
LOOK_AT_MOST = 1.9  # times the best round: nobody is to pause twice as long for a trial
# Where graphs are captured, two ticks after each change of shape take several times as long.  That
# is what a shape costs that never comes twice.  It is tried for some ticks on end, and though it
# seems this many times as slow.
LOOK_ON, LOOK_FARTHER = 4, 3.0
WORTH = 0.95  # a split has to save this much over merging: costs are known to a few per cent


@njit(nogil=True, cache=True)
def find_rounds(memory, cost, mode, n, most, past, in_turns):
    """Fill ``round_ms`` and ``group`` of ``memory`` for 1..n decoders in a mode.

    ``group[mode, k]``: how many of k decoders to merge in the next tick.  ``round_ms[mode, k]``: ms
    until each of them had one token, 0 where the cost is not known.  ``most``: rows of one tick.
    Not ``in_turns``: as many as fit are merged.
    """
    alone, total, group = memory.alone_ms[mode], memory.round_ms[mode], memory.group[mode]
    total[0] = 0.0
    group[0] = 0
    for k in range(1, n + 1):
        alone[k] = predict(cost, mode, k, 0, past)
    for k in range(1, n + 1):
        first = min(k, most)
        group[k] = first
        best = total[k] = 0.0
        if alone[first] <= 0.0:
            continue
        merged = alone[first] + total[k - first]
        best = merged
        for g in range(first - 1 if in_turns else 0, 0, -1):
            if alone[g] <= 0.0:
                continue
            ms = alone[g] + total[k - g]
            if ms < best and ms < WORTH * merged:
                best = ms
                group[k] = g
        total[k] = best


@njit(**INNER)
def look_again(memory, cost, n, most, doubt, overlaps):
    """Merge once although taking turns seems faster, or the reverse, to find out.

    Only a shape that was seen in fewer than ``doubt`` ticks, or not lately, is tried.  The round
    with it must not be expected to take much longer than the best round.  Without such tries, a
    shape that was slow by chance, or while others ran, would never be used again.
    ``overlaps``: on an accelerator, where `go_on_looking` makes it ``LOOK_ON`` ticks. What one row
    takes is known there from streams that were alone, and more rows take little more.
    """
    group, alone, total = memory.group[0], memory.alone_ms[0], memory.round_ms[0]
    whole, most_ms = min(n, most), (LOOK_FARTHER if overlaps else LOOK_AT_MOST) * total[n]
    before = group[n]
    if before < whole:
        merged = alone[whole] + total[n - whole]
        if cost.count[0, row_class(whole), 0] < doubt and merged <= most_ms:
            group[n] = whole
    elif n > 1 and not overlaps and 0.0 < n * alone[1] <= most_ms and cost.count[0, 1, 0] < doubt:
        group[n] = 1
    if overlaps and group[n] != before:
        memory.kept.look_left = LOOK_ON - 1
        memory.kept.look_of, memory.kept.look_rows = n, group[n]


@njit(**INNER)
def go_on_looking(memory, n, most):
    """Whether this is one of several ticks that try another shape, and not the first of them."""
    kept = memory.kept
    if kept.look_left == 0:
        return False
    kept.look_left -= 1
    if kept.look_of != n or kept.look_rows > most:
        kept.look_left = 0
        return False
    memory.group[0, n] = kept.look_rows
    return True
