"""Share of the machine's memory that kept texts take."""

from __future__ import annotations

import time
from collections.abc import Callable

from umaserve.cache.store import MEMORY
from umaserve.models.needs import available_bytes, total_bytes

from .copies import PrefixStore

SHARE = 4  # of the machine's memory, one part in so many may be taken by default
RESERVE = 16  # of the machine's memory, one part in so many stays free
LOOK_S = 1.0  # how often to ask what memory is free
IDLE_LOOK_MS = 10_000  # the same while nobody asks anything
AUTO = -1


def most_of(asked: int) -> int:
    """Bytes that texts may take at most; ``asked``: 0 = nothing, AUTO = by the machine's memory."""
    return total_bytes() // SHARE if asked == AUTO else asked


class MemoryShare:
    """At most ``most`` bytes for a store, and less where memory is short.

    ``tell`` is called where what is kept has changed.
    """

    def __init__(self, store: PrefixStore, most: int, tell: Callable[[], None]) -> None:
        self.tell = tell
        self._store, self._most = store, most
        self._looked_s = 0.0

    @property
    def idle_ms(self) -> int | None:
        """How long an idle engine may sleep before `look`; None = for ever."""
        return IDLE_LOOK_MS if self._store.bytes_held else None

    def look(self) -> None:
        """Take no more than is free, and give back where others need it."""
        now_s = time.monotonic()
        if not self._most or now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        free = available_bytes()
        if free:
            room = self._store.bytes_held + free - total_bytes() // RESERVE
            self._store.most_bytes = max(min(self._most, room), 0)
            self._store.shrink(why=MEMORY)
            self.tell()
