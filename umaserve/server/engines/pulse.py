"""Whether an engine still lives, by what it has done: ticks, rounds of its loop, messages handled.

What the front sends is no sign of life.  An engine that is stuck outside a tick handles no message,
however many come; what counts is how long the oldest has waited.
"""

from __future__ import annotations

from collections import deque

from umaserve.wire.header import BUSY_IDLE, Header

HANG_FLOOR_S = 30.0
HANG_FLOOR_FIRST_S = 120.0  # no finished tick to learn from yet
HANG_FACTOR = 20


def hang_limit_ns(header: Header, floor_s: float) -> int:
    """How long a tick may take: ``floor_s`` (0 = the defaults) or 20 of the longest ever seen."""
    learned = header.ticks > 0
    floor = floor_s or (HANG_FLOOR_S if learned else HANG_FLOOR_FIRST_S)
    return max(int(floor * 1e9), HANG_FACTOR * header.longest_tick_ns)


class EnginePulse:
    """Signs of life of an engine, from when it is ready.  All times are ``time.monotonic_ns()``.

    ``floor_s``: least seconds without a sign of life that count as a hang; 0 = the defaults.
    """

    def __init__(self, floor_s: float = 0.0) -> None:
        self._floor_s = floor_s
        self._waiting: deque[int] = deque()  # when each message was sent that is not handled yet
        self._handled = 0
        self._moved_ns = 0  # when it was last seen to have handled one

    def sent(self, now_ns: int) -> None:
        """A message goes to the engine; once it is handled, ``Header.handled`` counts it."""
        self._waiting.append(now_ns)

    def waits(self, header: Header) -> bool:
        """Whether a message is not handled yet."""
        return header.handled - self._handled < len(self._waiting)

    def hangs(self, header: Header, now_ns: int, *, busy: bool, resumed_ns: int = 0) -> bool:
        """To be called several times a second.

        ``busy``: requests have rows, so that ticks or rounds of the loop are to be expected.
        ``resumed_ns``: what the engine did not do before then says nothing about it.
        """
        handled = header.handled
        if handled != self._handled:
            for _ in range(min(handled - self._handled, len(self._waiting))):
                self._waiting.popleft()
            self._handled, self._moved_ns = handled, now_ns
        limit = hang_limit_ns(header, self._floor_s)
        tick_start = header.tick_start_ns
        if tick_start and header.busy != BUSY_IDLE and now_ns - max(tick_start, resumed_ns) > limit:
            return True
        # threads besides the loop's
        for text_ns in (header.text_since_ns, header.other_text_since_ns):
            if text_ns and now_ns - max(text_ns, resumed_ns) > limit:
                return True
        if not busy and not self._waiting:
            return False
        # an idle engine sleeps: its last round may be old when a message comes
        moved = max(header.heartbeat_ns, tick_start, self._moved_ns, resumed_ns)
        if self._waiting:
            moved = max(moved, self._waiting[0])
        return now_ns - moved > limit
