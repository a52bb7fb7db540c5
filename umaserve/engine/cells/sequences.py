"""Which KV sequence a row has, and what becomes of one whose request is over.

Where prompts are copied into the context, its cells are kept for a while: `cell_map` says why.  The
next turn of a chat may take over the sequence of the turn before, with its cells
(`umaserve.cache.next_turn`).  Until then the cells count as taken.  A model whose memory cannot be
cut has no map of cells.  Its ended sequences are held in place of rows that are not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from umaserve.cache.next_turn import Ended, NextTurns
from umaserve.engine.model.abilities import RESERVED, why_not_plain
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED
from umaserve.jit.direct import Direct

from . import cell_map as c
from .piece import saved_positions

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded



class Sequences:
    """The sequences of the loop's context, for its thread only.  ``cells`` is what the ticks take.

    `clear` has to be called before the first request; nothing may be in the cache then.
    """

    def __init__(self, loaded: Loaded) -> None:
        library, context = loaded.library, loaded.context
        self._context = context
        self._lib = library.lib
        self.rows = 0  # of the table that have one
        self._n_seq = loaded.n_seq
        self._loaded = loaded
        self._keeps = 0  # sequences that have ended and may have cells
        self._is_plain = not why_not_plain(loaded)
        self._free = deque(range(loaded.n_seq))
        self._ended: list[int] = []
        self.next_turns = NextTurns()
        self.leaving: Callable[[int], None] = lambda seq: None  # before a held one is let go
        self.cells = self._map(0)
        self._make_room, self._take = Direct(c.make_room), Direct(c.take_together)
        self._lose, self._end = Direct(c.lose), Direct(c.end_sequence)
        self._free_one = Direct(c.free_sequence)
        self._load()

    def keep(self) -> None:
        """From now on keep cells of ended requests; while no row has a sequence.

        The loop's records have to be arranged anew.
        """
        more = range(self._n_seq + RESERVED, self._context.n_seq_max)
        if not more or why_not_plain(self._loaded):
            return
        self._keeps = len(more)
        self._free += more
        self.cells = self._map(self._loaded.n_ctx)
        self.clear()

    def _map(self, n_ctx: int) -> c.CellMap:
        loaded, context = self._loaded, self._context
        return c.CellMap.of(
            n_ctx,
            context.n_seq_max,
            loaded.n_ubatch,
            int(loaded.library.ffi.cast("intptr_t", context.memory)),
            loaded.library.address("llama_memory_seq_rm"),
        )

    @property
    def keeps_cells(self) -> bool:
        """Whether cells of ended requests stay their sequence's now."""
        return bool(self.cells.marks.valid) or not self._is_plain

    @property
    def available(self) -> bool:
        """Whether another row may have one."""
        return self.rows < self._n_seq

    @property
    def has_free(self) -> bool:
        """Whether a row may have one without another that is let go."""
        return bool(self._free)

    def take(self) -> int:
        """Return a sequence without cells, for a row."""
        self._collect()
        if not self._free:
            self.let_go(self.next_turns.oldest())
        self.rows += 1
        return self._free.popleft()

    def give_back(self, seq: int, empty: bool = False, ended: Ended | None = None) -> None:
        """A row has ended, or lost its cells.

        ``empty``: it had none, so libllama need not look through all cells for them.  ``ended``: a
        text that is worth holding for its next turn.
        """
        self.rows -= 1
        if ended is not None and self.keeps_cells and not empty:
            self.next_turns.hold(seq, ended)
            if self._is_plain:
                self._leave_some()
        elif not self.rows and self._keeps and not self.next_turns:
            self._free.append(seq)
            self.clear()
        elif empty or not self.cells.marks.valid:
            if not empty:
                self._context.seq_rm(seq)
            self._free.append(seq)
        else:
            self._let_end(seq)
            self._leave_some()

    def go_on(self, seq: int, n: int) -> bool:
        """A row takes over a sequence that is held, with the first ``n`` tokens of it.

        False where libllama has something else in it: then nothing is kept any more.  Where memory
        cannot be cut, ``n`` has to be all tokens.
        """
        self.next_turns.came(seq)
        if self._is_plain:
            self._context.seq_rm(seq, n, -1)
        if self._context.seq_pos_max(seq) != n - 1:
            self._let_end(seq)
            if self._is_plain:
                self.lose_track()
            return False
        self.forgotten(seq, n)
        self.rows += 1
        return True

    def let_go(self, seq: int) -> None:
        """No next turn is waited for any more: the cells are kept as those of others."""
        self.leaving(seq)
        self.next_turns.drop(seq)
        self._let_end(seq)

    def _let_end(self, seq: int) -> None:
        if not self._is_plain:
            self._context.seq_rm(seq)
            self._free.append(seq)
            return
        self._end(self.cells, seq)
        self._ended.append(seq)
        self._collect()

    def _leave_some(self) -> None:
        """Rows find a sequence without cells at any time."""
        while len(self._ended) + len(self.next_turns) >= self._keeps:
            if not self._ended:
                self.let_go(self.next_turns.oldest())
                continue
            fewest = min(self._ended, key=lambda other: int(self.cells.cells[other]))
            self._free_one(self.cells, fewest)
            self._collect()

    def place(self, seq: int, saved: np.ndarray, p0: int, p1: int) -> None:
        """Positions [p0, p1) of a sequence are about to be restored from what libllama saved."""
        if self.cells.marks.valid and p1 > p0:
            self._make_room(self.cells, p1 - p0, True, True)
            self._take(self.cells, seq, saved_positions(saved, p0, p1))

    def for_nobody(self, tokens: int) -> int:
        """A sequence without cells for a batch of so many tokens, which is forgotten at once.

        No row decodes meanwhile.
        """
        seq, positions = self._free[0], np.arange(tokens, dtype=np.int32)
        self._make_room(self.cells, tokens, True, True)
        self._take(self.cells, seq, positions)
        self.forgotten(seq)
        return seq

    def stretches(self, seq: int, p0: int, p1: int, n_prompt: int) -> int:
        """In how many stretches of cells positions [p0, p1) lie.

        Where nobody knows, the prompt is taken to lie together, and each token behind it alone.
        """
        if not self.cells.marks.valid:
            return 1 + max(p1 - max(p0, n_prompt), 0)
        top = int(self.cells.marks.top)
        owner, position = self.cells.owner[:top], self.cells.position[:top]
        at = np.flatnonzero((owner == seq) & (position >= p0) & (position < p1))
        return int((np.diff(at) > 1).sum()) + 1

    def forgotten(self, seq: int, since: int = 0) -> None:
        """A sequence has lost its cells from that position on."""
        self._lose(self.cells, seq, since, 1 << 30)

    def shift(self, seq: int, p0: int, p1: int) -> bool:
        """Let a sequence forget positions [p0, p1), and move what is behind down to ``p0``.

        False where libllama could not, and then nobody knows what the sequence holds.
        """
        context, cells = self._context, self.cells
        if not context.seq_rm(seq, p0, p1):
            return False
        self._lose(cells, seq, p0, p1)
        context.seq_add(seq, p1, -1, p0 - p1)
        cells.position[(cells.owner == seq) & (cells.position >= p1)] -= p1 - p0
        cells.marks.head = 0  # where libllama looks for free cells after this
        return self._turn_keys()

    def _turn_keys(self) -> bool:
        """Have the keys of moved cells turned to their new positions now.

        libllama does so in front of the next decode.  A tick's may be given up halfway, and the
        cells may be saved before it.  So a token of nobody's is decoded here.
        """
        loaded, spare = self._loaded, self._n_seq
        batch = Batch(loaded.library.ffi, 1, 1)
        batch.arrays.seq[0], batch.arrays.n_tokens[0] = spare, 1
        self._make_room(self.cells, 1, False, True)
        self._take(self.cells, spare, batch.arrays.pos)
        status = loaded.library.lib.uma_decode(self._context.pointer, batch.struct)
        self._context.synchronize()
        self._context.seq_rm(spare)
        self._lose(self.cells, spare, 0, 1)
        return bool(status == DECODED)

    def clear(self) -> None:
        """The cache is empty, or has nothing in it that is wanted."""
        if self._keeps and not self.rows:
            self._free += [*self._ended, *self.next_turns.clear()]
            self._ended.clear()
            self._lib.llama_memory_clear(self._context.memory, False)
            self.cells.clear()

    def lose_track(self) -> bool:
        """Something went another way than was said: free what is kept, and keep nothing until the
        cache is empty again.  False where nothing was kept."""
        ended, self._ended = [*self._ended, *self.next_turns.clear()], []
        for seq in ended:
            self._context.seq_rm(seq)
        self._free += ended
        self.cells.marks.valid = 0
        return bool(ended)

    def check(self, counted: dict[int, int], of_rows: set[int]) -> None:
        """Raises AssertionError where this is not so: ``counted`` are libllama's cells by sequence,
        and rows have those ``of_rows``."""
        assert self.rows == len(of_rows), f"{self.rows} rows have sequences, not {len(of_rows)}"
        held = {seq for seq in counted if self.next_turns.size(seq)}
        groups = (set(self._free), set(self._ended), held, of_rows)
        listed = len(self._free) + len(self._ended) + len(held) + len(of_rows)
        assert listed == len(set().union(*groups)), f"a sequence is in two groups: {groups}"
        free, ended, _, _ = groups
        left = {seq: counted[seq] for seq in free if counted[seq]}
        assert not left, f"cells of sequences that nobody has: {left}"
        for seq in held:
            assert counted[seq] == self.next_turns.size(seq), f"{seq} is held with {counted[seq]}"
        if not self.cells.marks.valid:
            return
        owners = self.cells.owner[self.cells.owner >= 0]
        known = np.bincount(owners, minlength=self.cells.cells.size)
        assert (known == self.cells.cells).all() and known.sum() == self.cells.marks.used
        for seq in of_rows | held:
            assert known[seq] == counted[seq], f"{seq}: {known[seq]} cells, not {counted[seq]}"
        for seq in ended:
            assert (known[seq] > 0) == (counted[seq] > 0)

    def _load(self) -> None:
        """Have all that is compiled at hand before anybody waits for it; changes nothing."""
        self._make_room(self.cells, 1, True, True)
        self._take(self.cells, 0, np.zeros(1, np.int32))
        self._lose(self.cells, 0, 0, 1)
        for function in (self._end, self._free_one):
            function(self.cells, 0)
        self.cells.ended[:] = 0

    def _collect(self) -> None:
        """Ended sequences without cells can be taken again."""
        for seq in [seq for seq in self._ended if not self.cells.cells[seq]]:
            self._ended.remove(seq)
            self.cells.ended[seq] = 0
            self._free.append(seq)
