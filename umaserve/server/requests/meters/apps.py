"""Figures of each program's requests and answers: ``apps`` of the metrics."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from umaserve.metrics.window import quantile

MOST = 64  # programs; then the longest unused goes
NEWEST = 1024  # times between tokens that a p95 is taken over
SPAN_S = 60.0  # of these, no older ones
SHARE_S = 10  # whole seconds, this one included, of which a share is one of their tokens
UNKNOWN = "unknown"  # who says no name and has none


class App:
    """Counters of one program since it was seen first, and its newest times between tokens.

    ``lane`` and ``reason`` are those of its newest request that has any.  Takes 16 KiB.
    """

    def __init__(self, name: str, key: str, now_s: float) -> None:
        self.name, self.key = name, key
        self.used_s = now_s  # when a request of it came, or a token went out
        self.requests = 0
        self.tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of these, that were in the cache
        self.lane: int | None = None
        self.reason = ""
        self._gaps = array("d", bytes(16 * NEWEST))  # pairs: when it ended in s, ms
        self._next = 0
        self._seconds = [0] * SHARE_S
        self._counts = [0] * SHARE_S  # tokens of these seconds

    def sent(self, now_s: float, count: int) -> None:
        """``count`` tokens went out."""
        self.used_s = now_s
        self.tokens += count
        second = int(now_s)
        at = second % SHARE_S
        if self._seconds[at] != second:
            self._seconds[at], self._counts[at] = second, 0
        self._counts[at] += count

    def gap(self, now_s: float, value_ms: float) -> None:
        """A time between two tokens of one answer."""
        at = self._next
        self._gaps[at], self._gaps[at + 1] = now_s, value_ms
        self._next = (at + 2) % len(self._gaps)

    def begin_anew(self) -> None:
        """Forget the times between tokens and what was cached: they belong to another model."""
        self.prompt_tokens = self.cached_tokens = 0
        self._gaps = array("d", bytes(16 * NEWEST))
        self._next = 0

    def recent(self, now_s: float) -> int:
        """Tokens of the last ``SHARE_S`` seconds."""
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in pairs if second > int(now_s) - SHARE_S)

    def p95_ms(self, now_s: float) -> float | None:
        """95th percentile in ms of the times between tokens; ``None`` where there is no such time.

        Of the newest ``NEWEST`` times, those that ended within ``SPAN_S`` count.
        """
        if self.used_s <= now_s - SPAN_S:  # most of those that are kept
            return None
        pairs = np.frombuffer(self._gaps, np.float64).reshape(-1, 2)
        value = quantile(pairs[pairs[:, 0] > now_s - SPAN_S, 1], 0.95)
        return None if value is None else round(value, 4)


class Apps:
    """At most ``MOST`` of them.  Each API key has programs of its own, whatever they call
    themselves."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], App] = {}  # by key and name

    def came(self, name: str, now_s: float, key: str = "") -> App:
        """A request of a program came; whose figures it counts in."""
        name = name or UNKNOWN
        app = self._known.get((key, name))
        if app is None:
            if len(self._known) >= MOST:
                self._make_room()
            app = self._known[key, name] = App(name, key, now_s)
        app.used_s = now_s
        app.requests += 1
        return app

    def _make_room(self) -> None:
        """Forget the longest unused program of the key that has most."""
        (most, _), *_ = Counter(key for key, _ in self._known).most_common(1)
        own = [app for app in self._known.values() if app.key == most]
        oldest = min(own, key=lambda app: app.used_s)
        del self._known[oldest.key, oldest.name]

    def all(self) -> list[App]:
        """Return all apps, the most recently used app first."""
        return sorted(self._known.values(), key=lambda app: -app.used_s)
