"""The ticks' end of drafts.

A row that decodes is fed its last known token, and behind it those that were drafted.  The token
after each is sampled in order, with the random number, the penalties and the mask of its position.
While it is the next of the drafted ones, the logits behind that are the row's next as well.  They
are sampled in another round.  So the row gets what it would have got without drafts, and nothing
behind a mismatch is ever sampled.  The cells of the rest are freed again.
"""

from __future__ import annotations

from umaserve.drafts.index import copy_on, find, keep_up
from umaserve.engine.cells.cell_map import cut_end
from umaserve.engine.native.batch import to_come
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .records import MOST, NEVER

FIXED = 4  # tokens for each row where drafts are always tried


@njit(**INNER)
def draft(entries, plan, columns, drafts, room):
    """Draft tokens for the rows of a plan that decode, up to ``room`` for all of them.

    ``drafts.marks.given`` says how many there are.
    """
    marks, counts = drafts.marks, drafts.counts
    marks.given = marks.taken = 0
    if marks.way == NEVER:
        return
    room = min(room, MOST)
    for e in range(entries):
        slot = plan.slots[e]
        counts[slot] = drafts.right[slot] = 0
        n = columns.n_tokens[slot]
        if n - columns.n_past[slot] != 1 or not columns.speculate[slot] or columns.isolate[slot]:
            continue
        tokens = columns.tokens[slot]
        known = keep_up(
            drafts.index, slot, tokens, n, columns.arrival[slot], columns.shifts[slot]
        )
        most = min(FIXED, room - marks.given, to_come(columns, slot) - 1)
        if not known or most <= 0:
            continue
        place, same = find(drafts.index, slot, tokens, n)
        if same == 0:
            continue
        copy_on(tokens, n, place, drafts.tokens[slot], most)
        counts[slot] = most
        marks.given += most


@njit(**INNER)
def go_on_with(columns, batch, work, drafts, first, count, row_bytes):
    """Give those of ``count`` rows another round that got the next of their drafted tokens.

    The rows are those from ``batch.out_slot[first]`` on, and have their tokens.  Others are added
    behind all rows that have logits; returns how many.
    """
    added, end = 0, work.flight.outputs_sent
    for i in range(first, first + count):
        slot = batch.out_slot[i]
        right = drafts.right[slot]
        if right >= drafts.counts[slot] or work.sampled[i] != drafts.tokens[slot, right]:
            continue
        if columns.n_tokens[slot] == columns.n_past[slot] or columns.reason[slot] != 0:
            continue
        drafts.right[slot] = right + 1
        columns.n_past[slot] += 1
        batch.out_slot[end + added] = slot
        output = drafts.output[slot] + right + 1
        work.addresses[end + added] = work.flight.logits + row_bytes * output
        added += 1
    drafts.marks.taken += added
    work.flight.outputs_sent = end + added
    return added


@njit(**INNER)
def cut_rest(entries, plan, columns, drafts, cells):
    """Free the cells of drafted tokens that no row got, and count by row."""
    for e in range(entries):
        slot = plan.slots[e]
        given, right = drafts.counts[slot], drafts.right[slot]
        if given == 0:
            continue
        if right < given:
            cut_end(cells, columns.seq[slot], columns.n_past[slot], given - right)
        columns.drafted[slot] += given
        columns.accepted[slot] += right
        drafts.counts[slot] = 0
