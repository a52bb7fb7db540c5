"""Whether what is known of the cells is what libllama has: for tests, between two ticks.

Four places say something about the cells: the session table, the sequences, the map of cells and
the prefix cache.  What libllama says by itself, position by position where it tells, has to agree.
"""

from __future__ import annotations

import numpy as np

from umaserve.engine.cells.accounting import cells_used
from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.model.abilities import why_not_plain
from umaserve.engine.model.loaded import Loaded
from umaserve.wire import table as t

from .prefixes import Prefixes

HOLDING = (t.RUNNING, t.WAITING, t.FULL)  # states of rows that may have a sequence
CHECKS = "UMA_CHECK_CELLS"  # "1" in the environment: an engine that is idle checks


def check(
    loaded: Loaded, table: t.SessionTable, sequences: Sequences, prefixes: Prefixes
) -> int:
    """Raises AssertionError where two of them differ; returns the cells that libllama has for rows.

    While no tick runs and no prompt is on its way into the cells.
    """
    rows = np.flatnonzero(table.seq >= 0).tolist()
    seqs = table.seq[rows].tolist()
    assert len(set(seqs)) == len(seqs), f"rows {rows} have sequences {seqs}"
    for slot in rows:
        state = int(table.state[slot])
        assert state in HOLDING, f"row {slot} has a sequence in state {state}"
    plain = not why_not_plain(loaded)
    counted = {seq: _cells(loaded, seq, plain) for seq in range(loaded.context.n_seq_max)}
    for slot, seq in zip(rows, seqs, strict=True):
        said = 0 if table.isolate[slot] == t.APART else int(table.n_past[slot])
        assert counted[seq] == said, f"row {slot} has {counted[seq]} cells, not {said}"
    used = sum(counted[seq] for seq in seqs)
    apart = int(table.n_past[rows][table.isolate[rows] == t.APART].sum())  # in another context
    more = int(table.more_cells[rows][table.n_past[rows] > 0].sum())  # at positions of others
    said = cells_used(table) - apart - more
    assert used == said, f"{used} cells, not {said}"
    sequences.check(counted, set(seqs))
    prefixes.check()
    return used


def _cells(loaded: Loaded, seq: int, plain: bool) -> int:
    """Positions that libllama has of a sequence, from the first one on."""
    lib, memory = loaded.library.lib, loaded.context.memory
    first = int(lib.llama_memory_seq_pos_min(memory, seq))
    behind = int(lib.llama_memory_seq_pos_max(memory, seq)) + 1
    # a window forgets its first positions, and a state has but its last
    return behind - max(first, 0) if plain else behind
