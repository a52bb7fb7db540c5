"""Whether an engine still lives, by what it has done: ticks, rounds of its loop, messages handled.

What the front sends is no sign of life.  An engine that is stuck outside a tick handles no message,
however many come; what counts is how long the oldest has waited.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from umaserve.wire import table as t

HANG_FLOOR_S = 30.0
HANG_FLOOR_FIRST_S = 120.0  # no finished tick to learn from yet
HANG_FACTOR = 20


def hang_limit_ns(header: np.ndarray, floor_s: float) -> int:
    """How long a tick may take: ``floor_s`` (0 = the defaults) or 20 of the longest ever seen."""
    learned = int(header[t.H_TICKS]) > 0
    floor = floor_s or (HANG_FLOOR_S if learned else HANG_FLOOR_FIRST_S)
    return max(int(floor * 1e9), HANG_FACTOR * int(header[t.H_LONGEST_TICK_NS]))


class EnginePulse:
    """One engine, from when it is ready.  All times are ``time.monotonic_ns()``.

    ``floor_s``: the least time without a sign of life that is a hang; 0 = the defaults.
    """

    def __init__(self, floor_s: float = 0.0) -> None:
        self._floor_s = floor_s
        self._waiting: deque[int] = deque()  # when each message was sent that is not handled yet
        self._handled = 0
        self._moved_ns = 0  # when it was last seen to have handled one

    def sent(self, now_ns: int) -> None:
        """A message goes to the engine, which counts it in ``H_HANDLED`` once it is handled."""
        self._waiting.append(now_ns)

    def hangs(self, header: np.ndarray, now_ns: int, *, busy: bool) -> bool:
        """To be called several times a second.

        ``busy``: requests have rows, so that ticks or rounds of the loop are to be expected.
        """
        handled = int(header[t.H_HANDLED])
        if handled != self._handled:
            for _ in range(min(handled - self._handled, len(self._waiting))):
                self._waiting.popleft()
            self._handled, self._moved_ns = handled, now_ns
        limit = hang_limit_ns(header, self._floor_s)
        tick_start = int(header[t.H_TICK_START_NS])
        if tick_start and int(header[t.H_BUSY]) != t.BUSY_IDLE and now_ns - tick_start > limit:
            return True
        for word in (t.H_TEXT_SINCE_NS, t.H_OTHER_TEXT_SINCE_NS):  # threads besides the loop's
            text_ns = int(header[word])
            if text_ns and now_ns - text_ns > limit:
                return True
        if not busy and not self._waiting:
            return False
        # an idle engine sleeps: its last round may be old when a message comes
        moved = max(int(header[t.H_HEARTBEAT_NS]), tick_start, self._moved_ns)
        if self._waiting:
            moved = max(moved, self._waiting[0])
        return now_ns - moved > limit
