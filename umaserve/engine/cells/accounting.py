"""Accounting of the KV cells that all sessions share.

libllama's unified cache gives every token of every sequence one cell, and a picture may have more
cells than positions.  A request is admitted when its known tokens and those of the running ones fit
with a margin.  It does not reserve its whole answer, so that short answers with a generous
``max_tokens`` run side by side.  When the cells run out all the same, a session gives its cells
back and goes on later (`victim`).  Nothing is lost, and the oldest always gets through.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np
from numba.extending import register_jitable

from umaserve.engine.native.batch import to_come
from umaserve.jit.compiled import njit
from umaserve.jit.direct import Direct
from umaserve.wire.states import FULL, RUNNING, WAITING

if TYPE_CHECKING:
    from umaserve.wire.table import SessionTable

MARGIN = 32  # cells a request should find free beyond its prompt, so that it is not evicted at once


@register_jitable
def held_by(n_past, more_cells, slot):
    """Cells of one row."""
    return n_past[slot] + more_cells[slot] if n_past[slot] > 0 else 0


@njit(nogil=True, cache=True)
def count_used(state, n_past, more_cells):
    """Cells that hold a token of a running session: the one count that everybody goes by.

    All are int32[n_slots], of the session table.  A row that has begun counts all its pictures.
    Cells that libllama keeps of sessions that have ended are not among them (`sequences`).
    """
    used = 0
    for s in range(state.shape[0]):
        # WAITING while its cells are restored
        if state[s] == RUNNING or state[s] == WAITING or state[s] == FULL:
            used += held_by(n_past, more_cells, s)
    return used


_count_used = Direct(count_used)


def cells_used(table: SessionTable) -> int:
    """`count_used` of a table, for Python."""
    return int(_count_used(table.state, table.n_past, table.more_cells))


def needed(table: SessionTable, slot: int) -> int:
    """Cells of a row for all tokens known so far."""
    return int(table.n_tokens[slot] + table.more_cells[slot])


def cells_committed(table: SessionTable) -> int:
    """Cells that the sessions with a sequence need for the tokens known so far."""
    # plain lists: for a few dozen rows they are several times faster than array operations
    cells = (table.n_tokens + table.more_cells).tolist()
    return sum(
        n for state, seq, n in zip(table.state.tolist(), table.seq.tolist(), cells, strict=True)
        if state in (RUNNING, FULL) or state == WAITING and seq >= 0
    )  # fmt: skip


def held(table: SessionTable, slot: int, more: int = 0) -> float:
    """Sequences that a row's program holds, and ``more``, over the weight of its share."""
    running = (table.state == RUNNING) & (table.program == table.program[slot])
    return (int(np.count_nonzero(running)) + more) / (float(table.weight[slot]) or 1.0)


def next_to_admit(table: SessionTable, later: Container[int] = ()) -> int:
    """Slot of the waiting request that goes next, or -1.

    Interactive first, then of the program that holds fewest sequences by its weight, then by turn.
    None that goes ``later``, and none that has a sequence already.
    """
    rows = zip(table.state.tolist(), table.seq.tolist(), strict=True)
    waiting = [
        slot for slot, (state, seq) in enumerate(rows)
        if state == WAITING and seq < 0 and slot not in later
    ]  # fmt: skip
    if len(waiting) < 2:
        return waiting[0] if waiting else -1
    return min(waiting, key=lambda s: (table.lane[s], held(table, s), table.arrival[s]))


def fits(table: SessionTable, slot: int, n_cells: int) -> bool:
    """Whether the request in ``slot`` may hold a sequence together with the running ones."""
    if not cells_committed(table):
        return needed(table, slot) <= n_cells
    need = needed(table, slot) + min(MARGIN, max(int(to_come(table, slot)), 1))
    return cells_committed(table) + need <= n_cells


def gives_way(table: SessionTable, victim: int, slot: int) -> bool:
    """Whether a session that runs is parked for an interactive request that waits.

    Background is.  So is one of a program that holds more than its share: it still has as much as
    the other one then, by their weights.
    """
    if table.lane[victim] != table.lane[slot]:
        return bool(table.lane[victim] > table.lane[slot])
    return held(table, slot, 1) <= held(table, victim, -1)


def would_fit(table: SessionTable, slot: int, victim: int, n_cells: int) -> bool:
    """Whether an interactive request would fit if all that may give way held no cells: background,
    and the program of an interactive ``victim``."""
    stays = (table.state == RUNNING) & (table.lane == 0)
    if table.lane[victim] == 0:
        stays &= table.program != table.program[victim]
    stays |= table.state == FULL  # none of these gives way
    kept = int((table.n_tokens + table.more_cells)[stays].sum())
    return kept + needed(table, slot) + MARGIN <= n_cells or kept == 0


def victim(table: SessionTable, alone: bool = False, keep: int = -1) -> int:
    """Slot that gives its cells back when they run out, or -1 when only one session runs.

    Background goes before interactive, then the program with most sessions by its weight, and of
    that its newest.  Where each program has one, the oldest of the best lane never goes.  With
    ``alone`` even the only one may.  ``keep`` is a slot that does not go.
    """
    running = np.flatnonzero(table.state == RUNNING)
    running = running[running != keep]
    if running.size < (1 if alone else 2):
        return -1
    programs = table.program[running]
    weights = np.where(table.weight[running] > 0.0, table.weight[running], 1.0)
    sessions = (programs[:, None] == programs).sum(axis=1) / weights
    order = np.lexsort((table.arrival[running], sessions, table.lane[running]))
    return int(running[order[-1]])
