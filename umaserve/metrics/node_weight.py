"""How many new sessions a load balancer should send here: a weight of 1 to 100 per cent."""

from __future__ import annotations

LEAST, MOST = 1, 100
STEP = 10  # per cent: smaller changes are not told, since each moves sessions
RISE = 0.5  # of what is missing comes back with each look; a fall is told at once


class NodeWeight:
    """Remembers what was told last, so that the weight does not swing."""

    def __init__(self) -> None:
        self._told = MOST

    def look(self, p95_headroom: float, bandwidth_headroom: float | None, waiting: int) -> int:
        """The weight in per cent, once a look.

        ``p95_headroom`` and ``bandwidth_headroom`` are 0 to 1: what is left to the latency cap and
        of the bandwidth budget (``None``: nobody knows).  ``waiting``: requests that have no
        sequence yet; each halves the weight, as far as three.
        """
        free = min(p95_headroom, 1.0 if bandwidth_headroom is None else bandwidth_headroom)
        wanted = max(MOST * free * 0.5 ** min(waiting, 3), LEAST)
        ends = wanted in (LEAST, MOST)
        if wanted > self._told:
            wanted = min(self._told + max(RISE * (wanted - self._told), STEP), wanted)
        if abs(wanted - self._told) >= STEP or ends:
            self._told = round(wanted)
        return self._told
