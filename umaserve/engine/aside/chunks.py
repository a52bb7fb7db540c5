"""How many tokens the chunks of a text have that is computed beside the requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umaserve.policy.cost.model import TILED

PIECE_MS = 1000.0  # of a piece that nobody interactive waits behind
LEAST = 8  # tokens of it
GUESSED = 1e11  # operations a second, before a chunk was computed
# tokens of chunks that stop, each with its times at the gate: with rows, whose logits are a long
# part, and without
STOPPABLE, WITHOUT_ROWS = (2, 4, 8, 16, 32, 64), (8, 16, 32, 64)
FORGOTTEN = 100  # a size that was too long is believed to be one part in so many shorter each time


class ChunkSizes:
    """``most`` tokens at once; ``times`` are a gate's, in ns, and ``model_bytes`` tell what a token
    takes before one was computed.  ``given_up``: chunks in a row, for somebody interactive."""

    def __init__(self, most: int, model_bytes: int, times: np.ndarray) -> None:
        self.given_up = 0
        self._most, self._times = most, times
        self._ms_per_token = 0.0  # of chunks that did not stop
        self._guess = 2000.0 * model_bytes / GUESSED

    def learn(self, tokens: int, took_ms: float) -> None:
        """Learn the ms of a token from a chunk that did not stop."""
        a_token = took_ms / tokens
        known = self._ms_per_token or a_token
        self._ms_per_token = known + (a_token - known) / 4

    def whole(self, left: int) -> int:
        """As many as a piece has time for; what is left behind it is no short rest."""
        fits = int(PIECE_MS / (self._ms_per_token or self._guess)) >> self.given_up
        most = min(self._most, max(fits, LEAST))
        if left <= most or left - most >= TILED:
            return min(left, most)
        return max(left - TILED, min(TILED, most))

    def within(self, left: int, ms: float, least: int) -> int:
        """As many as take so long, of a chunk that will not stop before its end."""
        fits = int(ms / self._ms_per_token) if self._ms_per_token else 0
        return min(left, self._most, max(fits, least))

    def stoppable(
        self, left: int, most_ms: float, wants: Callable[[int], bool]
    ) -> tuple[int, int]:
        """Tokens of a chunk that stops, and where the gate keeps its times.

        The largest size that has no part which is too long for the best slice, ``most_ms``; the
        size after those that are known is tried.  ``wants``: whether any row of so many is needed.
        """
        has_rows = wants(min(left, WITHOUT_ROWS[0]))
        first, sizes = (0, STOPPABLE) if has_rows else (len(STOPPABLE), WITHOUT_ROWS)
        best = first
        for number in range(first, first + len(sizes)):
            longest_ms = float(self._times[number].max()) / 1e6
            if longest_ms > most_ms:
                self._times[number] -= self._times[number] // FORGOTTEN
                break
            best = number
            if longest_ms == 0.0:
                break
        if has_rows:
            return min(left, sizes[best]), best
        return max(min(left - 1, sizes[best - first]), 1), best  # the last row may be wanted
