"""Texts of ended rows that are saved later, from cells that are held for their next turns.

To save a long text at once would stop all streams: 4,000 words of a large model take 0.2 s on an
accelerator.  While its cells are held, it is saved a piece at a time.  A next turn that comes
before has the cells, and nothing of it is saved.  A prompt of another chat that begins with the
text has that beginning saved first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from umaserve.cache.entry import common
from umaserve.cache.next_turn import Ended, NextTurns
from umaserve.wire import table as t

WORTH_A_COPY = 8  # tokens: fewer are computed as soon
REST_S = 1.0  # without an ended request, before texts are saved in a pause
EACH_S = 0.25  # between two pieces beside streams: one takes 2 to 20 ms, by how its cells lie
COPYING = 0.1  # of the time beside streams, at most
PAUSE_MS = 100.0  # of streams that readers do not mind; longer copies wait for a pause of requests


@dataclass(slots=True, eq=False)
class Text:
    """``tokens`` that a sequence has, as a row leaves them.

    ``n_prompt``: tokens that were not decoded one by one.  ``lease``: how many times its cost it is
    worth; ``is_shared``: others may have it, so it may go to disk.  ``more_cells``: that its
    pictures have beyond their tokens.
    """

    domain: str
    tokens: np.ndarray
    seq: int
    n_prompt: int
    lease: float
    is_shared: bool
    more_cells: int = 0

    def cells(self, p0: int, p1: int) -> int:
        """Cells of tokens [p0, p1); those of pictures are spread over all pictures alike."""
        if not self.more_cells:
            return p1 - p0
        seen = self.tokens < t.NOT_YET
        share = int(seen[p0:p1].sum()) / max(int(seen.sum()), 1)
        return p1 - p0 + round(share * self.more_cells)


class Late(NamedTuple):
    """A text on its way into the store, from the cells that ``ended`` holds.

    ``is_dear``: copies take long, so what is left is dropped when others need the cells.
    """

    ended: Ended
    text: Text
    in_background: bool
    is_dear: bool


class LateTexts:
    """For the loop's thread.  ``save`` saves a piece of a text that is not kept yet.

    It returns how many tokens are kept then, 0 where nothing more can be kept.  ``save_ms``
    estimates how long it takes.
    """

    def __init__(
        self, held: NextTurns, save: Callable[[Text], int], save_ms: Callable[[Text], float]
    ) -> None:
        self._held, self._save, self._save_ms = held, save, save_ms
        self._texts: dict[int, Late] = {}
        self._next_s = self._put_s = time.monotonic()

    def put(self, late: Late) -> None:
        """Take a text whose cells are about to be held."""
        self._texts[late.text.seq] = late
        self._put_s = time.monotonic()

    def save_all(self, wanted: Callable[[], object] = lambda: False) -> None:
        """Save what is held, until something is ``wanted``."""
        while self._texts and not wanted():
            self.step()

    def step(self, background: bool = True, saves: bool = True) -> None:
        """Save a piece of the text that has waited longest.

        ``background``: texts of background requests count too, and those that take over `PAUSE_MS`.
        Without ``saves``, this only forgets texts whose cells are held no longer.
        """
        began_s = time.monotonic()
        for seq in list(self._texts):
            if self._is_held(seq) and saves and (background or self._is_light(self._texts[seq])):
                self._save_piece(seq)
                break
        ended_s = time.monotonic()
        self._next_s = ended_s + max(EACH_S, (ended_s - began_s) / COPYING)

    @property
    def is_left(self) -> bool:
        """Whether a text is left, or one that is held no longer."""
        return bool(self._texts)

    @property
    def rests(self) -> bool:
        """Whether no request has ended lately: the next one may be a moment away."""
        return time.monotonic() >= self._put_s + REST_S

    @property
    def is_due(self) -> bool:
        """Whether it is time for `step` beside streams."""
        return bool(self._texts) and time.monotonic() >= self._next_s

    def let_go(self, seq: int, beside_streams: bool) -> None:
        """A sequence is held no longer: save the rest of its text, or drop it.

        A text of the background is dropped ``beside_streams``.
        """
        late = self._texts.get(seq)
        if late is not None and (late.is_dear or late.in_background and beside_streams):
            del self._texts[seq]
        while self._is_held(seq) and self._save_piece(seq):
            pass

    def save_beginning(self, domain: str, tokens: np.ndarray, kept: int, least: int) -> bool:
        """Save what a prompt begins with, beyond the ``kept`` tokens of it, if it is ``least``.

        Return whether something was saved.
        """
        done = False
        for seq in list(self._texts):
            if not self._is_held(seq) or self._texts[seq].text.domain != domain:
                continue
            shared = common(self._texts[seq].text.tokens, tokens)
            while shared - kept >= least and (end := self._save_piece(seq)) > kept:
                kept, done = end, True
        return done

    def clear(self) -> None:
        """Nothing is saved any more."""
        self._texts.clear()

    def _is_light(self, late: Late) -> bool:
        """Whether a piece may be saved beside streams."""
        return not late.in_background and self._save_ms(late.text) <= PAUSE_MS

    def _is_held(self, seq: int) -> bool:
        if seq in self._texts and self._held.held(seq) is not self._texts[seq].ended:
            del self._texts[seq]
        return seq in self._texts

    def _save_piece(self, seq: int) -> int:
        text = self._texts[seq].text
        kept = self._save(text)
        if not 0 < kept <= text.tokens.size - WORTH_A_COPY:
            del self._texts[seq]
        return kept
