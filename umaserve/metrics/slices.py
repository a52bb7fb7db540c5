"""Seconds that held the latency cap: what throughput at the cap is counted over."""

from __future__ import annotations

from array import array


class CapSlices:
    """Slices of one second: tokens of all lanes, and whether interactive requests held the cap.

    Each interactive time between tokens is divided by its own ceiling.  A slice *held* the cap when
    the 95th percentile (nearest rank) of its quotients is at most 1.  So of n times, at most
    n - ceil(0.95 n) are above their ceiling.  A time longer than a second counts in the slice where
    it ends, and in every slice that lies wholly within it.  So a stall is not a gap in the record.

    A slice in which no interactive request got or awaited a next token held the cap as well.  A
    slice in which all interactive times lack a ceiling (the baseline is not known yet) neither held
    nor broke the cap.  Its tokens and its second are left out.

    Seconds count from ``started_s``.  Everything is allocated once.
    """

    def __init__(self, started_s: float, span_s: int = 60) -> None:
        self._started_s = started_s
        self._span = span_s
        self._newest = 0
        self._tokens = array("q", bytes(8 * span_s))
        self._judged = array("q", bytes(8 * span_s))
        self._late = array("q", bytes(8 * span_s))
        self._unjudged = array("q", bytes(8 * span_s))

    def tokens(self, now_s: float, count: int) -> None:
        """``count`` tokens of any lane went out."""
        self._tokens[self._at(now_s)] += count

    def interactive(self, now_s: float, gap_ms: float, ceiling_ms: float) -> None:
        """A time between two tokens that ended now; ``ceiling_ms`` of 0: not known."""
        row = self._at(now_s)
        if ceiling_ms <= 0:
            self._unjudged[row] += 1
            return
        late = gap_ms > ceiling_ms
        self._judged[row] += 1
        self._late[row] += late
        if gap_ms > 1000.0:
            began_s = now_s - gap_ms / 1000.0 - self._started_s
            for slice_ in range(max(int(began_s) + 1, self._newest - self._span + 1), self._newest):
                if slice_ >= 0:
                    self._judged[slice_ % self._span] += 1
                    self._late[slice_ % self._span] += late

    def _at(self, now_s: float) -> int:
        newest = int(now_s - self._started_s)
        if newest > self._newest:
            for passed in range(max(self._newest + 1, newest - self._span + 1), newest + 1):
                row = passed % self._span
                self._tokens[row] = self._judged[row] = self._late[row] = self._unjudged[row] = 0
            self._newest = newest
        return self._newest % self._span

    def tokens_per_s(self, now_s: float) -> float | None:
        """Tokens of the slices that held the cap, over the time of all that could be judged.

        Of the finished slices of the window; ``None`` when there is none.
        """
        self._at(now_s)
        tokens = seconds = 0
        for slice_ in range(max(0, self._newest - self._span + 1), self._newest):
            row = slice_ % self._span
            judged, late = self._judged[row], self._late[row]
            if self._unjudged[row] and not judged:
                continue
            seconds += 1
            if 20 * late <= judged:  # late <= judged - ceil(0.95 judged)
                tokens += self._tokens[row]
        return tokens / seconds if seconds else None
