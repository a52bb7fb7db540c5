"""Lines of a log that come again and again: written once, counted from then on."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FIRST_S, LONGEST_S = 10.0, 600.0  # between two words about a line that goes on coming
KEPT = 64  # lines that are compared with

Key = tuple[str, str]  # level and text


@dataclass
class _Line:
    said_s: float  # when it, or the last word about it, was written
    wait_s: float
    count: int = 0


class Repeats:
    """The newest lines.  What comes again is counted; `due` says when that is to be told.  It is
    after ten seconds, then after twice as long each, up to ten minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: OrderedDict[Key, _Line] = OrderedDict()

    def again(self, level: str, text: str) -> bool:
        """Whether this line was written lately; then it is counted, and not to be written."""
        now_s, key = self._clock(), (level, text)
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(now_s, FIRST_S)
            return False
        line.count += 1
        return True

    def due(self, *, all: bool = False) -> list[tuple[Key, int, float]]:
        """Return the lines whose repeats are to be told now; with ``all`` every repeated line.

        Each has the number of its repeats, and the seconds in which they came.
        """
        now_s = self._clock()
        out = []
        for key, line in list(self._lines.items()):
            crowded = len(self._lines) > KEPT
            if not all and not crowded and now_s - line.said_s < line.wait_s:
                continue
            if line.count:
                out.append((key, line.count, now_s - line.said_s))
                line.wait_s = min(2 * line.wait_s, LONGEST_S)
            if crowded or not line.count:
                del self._lines[key]
            line.said_s, line.count = now_s, 0
        return out
