"""Ticks of nobody's tokens on the engine's own context, to find out how long they take.

For the loop's thread, while no session has cells: whatever is in the cache is forgotten.
"""

from __future__ import annotations

import time

from umaserve.engine.model.loaded import Loaded
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native import abort
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED
from umaserve.wire.header import AbortWords

PAST = 32


def depth(loaded: Loaded) -> int:
    """Tokens that the decoding rows have behind them, PAST where a batch and a session hold so
    many."""
    return min(PAST, loaded.n_batch, loaded.n_positions - 1)


class BareTicks:
    """`close` leaves an empty cache and the usual threads.

    ``words`` are the session table's: an interactive request gives a tick up (`abort`).
    """

    def __init__(self, loaded: Loaded, words: AbortWords) -> None:
        self._loaded = loaded
        self._words = words
        self._depth = depth(loaded)
        self._past: dict[int, int] = {}  # tokens of each row that is in the cache
        self._one_and_more = 0, 0
        self._batch = Batch(loaded.library.ffi, loaded.n_batch, 1)
        self.threads(*loaded.threads(0))

    def close(self) -> None:
        self._forget_all()
        self._loaded.context.set_threads(*self._loaded.threads(0))

    def threads(self, one: int, more: int) -> None:
        """Threads of ticks of one token and of more; they get their places anew."""
        if (one, more) != self._one_and_more:
            self._one_and_more = one, more
            self._loaded.context.set_threads(one, more)
            self._loaded.places.placed = 0

    def measure(self, rows: int, prompt: int) -> float:
        """Wall time in ms of a tick of so many decoding rows and prompt tokens.

        0.0 where libllama refused it, or it was given up.  More rows than there are sequences are
        several tokens of each, as with drafts.
        """
        context = self._loaded.context
        tokens, rows = rows, min(rows, self._loaded.n_seq)
        for row in range(rows):
            if row not in self._past:
                if not self._decode([(row, self._depth)], 0):
                    return 0.0
                self._past[row] = self._depth
        for row in [row for row in self._past if row >= rows]:
            context.seq_rm(row)
            del self._past[row]
        before = time.monotonic()
        entries = [(row, (tokens + rows - 1 - row) // rows) for row in range(rows)]
        if not self._decode(entries, prompt, rows, are_rows=True):
            return 0.0
        wall_ms = (time.monotonic() - before) * 1000.0
        for row in range(rows):  # the same cells again: one depth is to be measured
            if not context.cut(row, self._past[row]):
                del self._past[row]
        if prompt:
            context.seq_rm(rows)
        return wall_ms

    def _decode(
        self, entries: list[tuple[int, int]], prompt: int, seq: int = 0, are_rows: bool = False
    ) -> bool:
        batch, n, n_vocab = self._batch, 0, self._loaded.n_vocab
        for row, count in entries:
            batch.put_nobodys(count, n_vocab, row, n, self._past.get(row, 0))
            n += count
            batch.arrays.logits[n - count if are_rows else n - 1 : n] = 1
        if prompt:
            batch.put_nobodys(prompt, n_vocab, seq, n)
            n += prompt
        context = self._loaded.context
        place_threads(self._loaded.places, self._one_and_more[n > 1])
        with abort.armed(self._words):
            status = context.library.lib.uma_decode(context.pointer, batch.struct)
        if status != DECODED:
            self._forget_all()  # of a batch that was given up, some may be there
            return False
        context.synchronize()
        return True

    def _forget_all(self) -> None:
        self._loaded.context.clear()
        self._past.clear()
