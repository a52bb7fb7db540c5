"""Which KV sequence a row has, and what becomes of one whose request is over.

The next turn of a chat may take over the sequence of the turn before, with its cells
(`umaserve.cache.next_turn`).  Until then the cells count as taken.  Ended sequences are held where
copies of cells may be dear: on an accelerator, and where memory cannot be cut.  An accelerator's
context has more sequences than rows for them.  Elsewhere they are held in place of rows that are
not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from umaserve.cache.next_turn import FEW_CELLS, FEWER_CELLS, Ended, NextTurns
from umaserve.engine.model.abilities import RESERVED, why_not_plain
from umaserve.engine.model.loaded import Loaded
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED


class Sequences:
    """The sequences of the loop's context, for its thread only."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded, self._context = loaded, loaded.context
        self._is_plain = not why_not_plain(loaded)
        first = loaded.n_seq + RESERVED
        more = range(first, max(loaded.context.n_seq_max, first) if self._is_plain else first)
        self.rows = 0  # of the table that have a sequence
        self._n_rows, self._more = loaded.n_seq, len(more)
        self._free = deque([*range(loaded.n_seq), *more])
        self.next_turns = NextTurns(FEWER_CELLS if loaded.on_processor else FEW_CELLS)
        self.leaving: Callable[[int], None] = lambda seq: None  # before a held one is let go

    @property
    def holds(self) -> bool:
        """Whether cells of ended requests may be held for their next turns."""
        return self._more > 1 or not self._is_plain

    @property
    def available(self) -> bool:
        """Whether another row may have one."""
        return self.rows < self._n_rows

    @property
    def has_free(self) -> bool:
        """Whether a row may have one without another that is let go."""
        return bool(self._free)

    def take(self) -> int:
        """Return a sequence without cells, for a row."""
        if not self._free:
            self.let_go(self.next_turns.oldest())
        self.rows += 1
        return self._free.popleft()

    def give_back(self, seq: int, ended: Ended | None = None) -> None:
        """A row has ended, or lost its cells; ``ended``: its text, if its next turn may want it."""
        self.rows -= 1
        if ended is not None and self.holds:
            self.next_turns.hold(seq, ended)
            while self._is_plain and len(self.next_turns) >= self._more:
                self.let_go(self.next_turns.oldest())
            return
        self._empty(seq)

    def go_on(self, seq: int, last: int, rewind: Callable[[], bool] | None = None) -> bool:
        """A row takes over a sequence that is held, up to the position ``last``.

        False where libllama has something else in it: then it is free.  Where memory cannot be cut,
        that is the last position of all, or ``rewind`` takes the sequence back to it.
        """
        self.next_turns.came(seq)
        done = rewind is None or rewind()
        if self._is_plain:
            self._context.seq_rm(seq, last + 1, -1)
        if not done or self._context.seq_pos_max(seq) != last:
            self._empty(seq)
            return False
        self.rows += 1
        return True

    def let_go(self, seq: int) -> None:
        """No next turn is waited for any more."""
        self.leaving(seq)
        self.next_turns.drop(seq)
        self._empty(seq)

    def let_all_go(self) -> None:
        """No next turn is waited for any more, of any request."""
        while self.next_turns:
            self.let_go(self.next_turns.oldest())

    def _empty(self, seq: int) -> None:
        self._context.seq_rm(seq)
        self._free.append(seq)

    def shift(self, seq: int, p0: int, p1: int) -> bool:
        """Let a sequence forget positions [p0, p1), and move what is behind down to ``p0``.

        False where libllama could not, and then nobody knows what the sequence holds.
        """
        if not self._context.seq_rm(seq, p0, p1):
            return False
        self._context.seq_add(seq, p1, -1, p0 - p1)
        return self._turn_keys()

    def _turn_keys(self) -> bool:
        """Have the keys of moved cells turned to their new positions now.

        libllama does so in front of the next decode.  A tick's may be given up halfway, and the
        cells may be saved before it.  So a token of nobody's is decoded here.
        """
        library, spare = self._loaded.library, self._n_rows
        batch = Batch(library.ffi, 1, 1)
        batch.arrays.seq[0], batch.arrays.n_tokens[0] = spare, 1
        status = library.lib.uma_decode(self._context.pointer, batch.struct)
        self._context.synchronize()
        self._context.seq_rm(spare)
        return bool(status == DECODED)

    def spare(self) -> int:
        """Return a sequence without cells for a batch of nobody's, while no row decodes."""
        return self._free[0]

    def clear(self) -> None:
        """Empty the cache, held cells included; while no row has a sequence."""
        if not self.rows:
            self._free += self.next_turns.clear()
            self._context.clear()

    def check(self, counted: dict[int, int], of_rows: set[int]) -> None:
        """Raises AssertionError where this is not so: ``counted`` are libllama's cells by sequence,
        and rows have those ``of_rows``."""
        assert self.rows == len(of_rows), f"{self.rows} rows have sequences, not {len(of_rows)}"
        held = {seq for seq in counted if self.next_turns.size(seq)}
        groups = (set(self._free), held, of_rows)
        listed = len(self._free) + len(held) + len(of_rows)
        assert listed == len(set().union(*groups)), f"a sequence is in two groups: {groups}"
        left = {seq: counted[seq] for seq in self._free if counted[seq]}
        assert not left, f"cells of sequences that nobody has: {left}"
        for seq in held:
            assert counted[seq] == self.next_turns.size(seq), f"{seq} is held with {counted[seq]}"
