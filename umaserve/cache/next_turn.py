"""Ended requests whose KV cells are held for the next turn of their chat.

A chat's next turn begins with its last prompt, and mostly with the answer too.  Where the cells of
both are still there, the new request goes on in them: nothing is copied or computed again.  Held
cells are in the way of other rows.  So few are held, for a short time, and mostly of programs whose
requests have had next turns.  This module decides; its caller frees the cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .entry import common

HOLD_S = 10.0  # while others run: in that time most tools have answered
FEWEST = 64  # tokens: fewer are copied or computed as soon
REWRITTEN = 16  # tokens at a prompt's end that a template may write otherwise in the next turn
# Cells that may be held, however few cells running rows have.  The first is room for the texts of
# two agents; the second is for a processor, where ticks read held cells too.  Half of the cells of
# running rows may be held if that is more.
FEW_CELLS, FEWER_CELLS = 32_768, 8192
LEARN = 0.1  # weight of the newest request
UNKNOWN, ENOUGH = 0.5, 0.2  # share of next turns: of a new program, and from which on it is held
TRY_EACH = 8  # of a program without next turns, one request in so many is held all the same
PROGRAMS = 256  # that are remembered


@dataclass(slots=True, eq=False)
class Ended:
    """A request that is over.  ``tokens`` (int32, owned) are those that its cells hold; of these
    the first ``n_prompt`` were its prompt.  ``since_s``: when it ended, by a monotonic clock.
    ``more_cells``: that its pictures have beyond their tokens."""

    domain: str
    program: int
    tokens: np.ndarray
    n_prompt: int
    since_s: float
    more_cells: int = 0

    @property
    def cells(self) -> int:
        """KV cells that it has."""
        return self.tokens.size + self.more_cells


class NextTurns:
    """Ended requests that are held, by the sequence that has their cells; oldest first.

    ``few_cells`` may be held whoever runs.
    """

    def __init__(self, few_cells: int = FEW_CELLS) -> None:
        self._few_cells = few_cells
        self._held: dict[int, Ended] = {}
        self._shares: dict[int, float] = {}  # of each program's requests that had a next turn
        self._asked: dict[int, int] = {}  # how many requests of each have ended
        self.cells = 0  # of all that is held

    def __len__(self) -> int:
        return len(self._held)

    def size(self, seq: int) -> int:
        """Tokens that are held in a sequence; 0 = it is not held."""
        return self._held[seq].tokens.size if seq in self._held else 0

    def held(self, seq: int) -> Ended | None:
        """The request whose cells a sequence has, where it is held."""
        return self._held.get(seq)

    def is_worth(self, program: int, alone: bool = False) -> bool:
        """Whether a request of this program, which ends now, is to be held.

        ``alone``: nobody waits for its cells.
        """
        if len(self._shares) > PROGRAMS:
            self._shares.clear()
            self._asked.clear()
        share = self._shares.get(program, UNKNOWN)
        asked = self._asked[program] = self._asked.get(program, 0) + 1
        if share < ENOUGH and asked % TRY_EACH and not alone:
            return False
        self._shares[program] = share * (1.0 - LEARN)  # only of those that are held
        return True

    def hold(self, seq: int, ended: Ended) -> None:
        """A sequence has the cells of ``ended`` from now on; it must not be held already."""
        self._held[seq] = ended
        self.cells += ended.cells

    def find(self, domain: str, tokens: np.ndarray) -> tuple[int, int]:
        """Find the sequence whose next turn a text (int32) is, and count their common tokens.

        Return (-1, 0) where no sequence fits.  The text has to begin with the whole prompt of the
        held request, but for ``REWRITTEN`` tokens at its end.  So a text that only shares a system
        prompt does not take another chat's cells.
        """
        found, most = -1, 0
        for seq, ended in self._held.items():
            least = max(min(ended.n_prompt, ended.tokens.size) - REWRITTEN, FEWEST)
            if ended.domain != domain or min(ended.tokens.size, tokens.size) < least:
                continue
            if ended.tokens[least - 1] != tokens[least - 1]:
                continue  # most are another chat's: all tokens are compared of few
            same = common(ended.tokens, tokens)
            if same >= max(least, most + 1):
                found, most = seq, same
        return found, most

    def came(self, seq: int) -> None:
        """The next turn is there, and has the sequence."""
        program = self._held[seq].program
        self._shares[program] = self._shares.get(program, UNKNOWN) + LEARN
        self.drop(seq)

    def drop(self, seq: int) -> None:
        """A sequence is held no longer."""
        self.cells -= self._held.pop(seq).cells

    def oldest(self) -> int:
        """The sequence that is held longest; something has to be held."""
        return next(iter(self._held))

    def overdue(self, running: int, room: int, now_s: float) -> int:
        """A sequence that is to be held no longer, or -1.

        ``running``: cells of rows that run; ``room``: cells that these leave.
        """
        if not self._held:
            return -1
        oldest = self.oldest()
        most = min(max(self._few_cells, running // 2), room)
        is_old = now_s > self._held[oldest].since_s + HOLD_S
        return oldest if is_old or self.cells > most else -1

    def clear(self) -> list[int]:
        """Nothing is held any more; returns the sequences that were."""
        sequences = list(self._held)
        self._held.clear()
        self.cells = 0
        return sequences
