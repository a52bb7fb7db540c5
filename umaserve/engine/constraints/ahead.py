"""Masks behind the drafted tokens of a tick, made while it computes.

A copy of the matcher follows the drafts, and is thrown away.  So nothing has to be taken back where
the row's tokens go another way.  The effect of a wrong draft stays with the copy.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from umaserve.sampling.ahead import MADE_BITS, Ahead
from umaserve.sampling.mask import words_of
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first, stores_first

from .matcher import Matcher
from .vocabulary import Vocabulary


class MasksAhead:
    """Masks behind a row's drafts; for its request's thread, but `close` is called under ``lock``.

    It owns ``masks``, int32[words] for each drafted token, as many as have been needed.  A mask is
    written once for each number of drafts, before ``ahead.made`` counts it.
    """

    def __init__(
        self, slot: int, vocabulary: Vocabulary, table: t.SessionTable, ahead: Ahead, lock: Lock
    ) -> None:
        self._slot, self._vocabulary, self._table = slot, vocabulary, table
        self._ahead, self._lock = ahead, lock
        self.masks: list[np.ndarray] = []
        self._is_closed = False
        self._followed = 0  # the number of the drafts that were followed last
        # drafts that the matcher has not seen, and the mask behind each; None = all are allowed
        self._made: list[tuple[int, np.ndarray | None]] = []

    def close(self) -> None:
        """The row is another's from now on."""
        self._is_closed = True

    def take(self, new: list[int]) -> np.ndarray | None:
        """The mask behind ``new``, which the matcher is about to see, if it is there (borrowed)."""
        made, n = self._made, len(new)
        if new != [token for token, _ in made[:n]]:
            self._made = []
            return None
        self._made = made[n:]
        return made[n - 1][1] if new else None

    def follow(self, matcher: Matcher, at: int) -> None:
        """Make masks behind new drafts, if they are behind the ``at`` tokens that it has seen.

        Stops where the row's tokens have gone another way.  Raises at a draft that may not come.
        """
        number, drafts = self._drafts(at)
        if not drafts:
            return
        self._followed, self._made = number, []
        other = matcher.copy()
        for i, token in enumerate(drafts):
            if not self._goes_on(at, drafts):
                return
            other.accept([token])
            mask = self._mask(i)
            binds = self._vocabulary.fill(other, mask)
            self._made.append((token, mask if binds else None))
            if not self._say(number, mask.ctypes.data if binds else 0):
                return

    def _drafts(self, at: int) -> tuple[int, list[int]]:
        """New drafts behind so many tokens, and their number."""
        ahead, slot = self._ahead, self._slot
        number = int(ahead.number[slot])
        loads_first()
        found = ahead.tokens[slot, : ahead.counts[slot]].tolist()
        is_for = int(ahead.at[slot])
        loads_first()
        if number % 2 or number != ahead.number[slot]:
            return 0, []  # they are being written: another byte comes
        if number == self._followed or is_for != at:
            return 0, []
        return number, found

    def _goes_on(self, at: int, drafts: list[int]) -> bool:
        """Whether what has come behind ``at`` tokens is what was drafted."""
        n_tokens = int(self._table.n_tokens[self._slot])
        loads_first()
        new = self._table.tokens[self._slot, at:n_tokens].tolist()
        return bool(new == drafts[: len(new)])

    def _mask(self, i: int) -> np.ndarray:
        if i == len(self.masks):
            self.masks.append(np.zeros(words_of(self._vocabulary.model.n_vocab), np.int32))
        return self.masks[i]

    def _say(self, number: int, address: int) -> bool:
        """The newest mask is there; False: nobody wants more."""
        ahead, slot, n = self._ahead, self._slot, len(self._made)
        with self._lock:
            if self._is_closed:
                return False
            ahead.masks[slot, n - 1] = address
            stores_first()
            ahead.made[slot] = (number << MADE_BITS) + n
        return bool(ahead.number[slot] == number)
