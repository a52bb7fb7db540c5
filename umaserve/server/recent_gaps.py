"""The last minute of times between tokens as a curve: one point each half second and lane."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from umaserve.metrics import quantile
from umaserve.server.request import LANE_NAMES, Request

POINT_NS = 500_000_000
POINTS = 120
OPEN = 4  # newest points that still take values
FIRST_LOOK = 2000  # tokens of a request that are looked at when it is seen first


class RecentGaps:
    """Reads the requests' own time stamps when somebody asks; nothing is kept up between.

    A request that begins and ends between two looks is not seen.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Request, int]] = {}  # by serial; tokens looked at
        self._open: tuple[dict[int, list[float]], ...] = ({}, {})  # ms, by lane and point
        self._points: tuple[dict[int, float], ...] = ({}, {})

    def read(self, live: Mapping[int, Request], now_ns: int) -> dict[str, list[float | None]]:
        """By lane: the 95th percentile in ms of ``POINTS`` half seconds, the newest last.

        ``None`` where no token came.  ``now_ns`` is ``time.monotonic_ns()``.
        """
        newest = now_ns // POINT_NS
        oldest = newest - POINTS + 1
        known = self._known
        for serial, request in live.items():
            if serial not in known:
                first = max(bisect_right(request.token_ns, oldest * POINT_NS), 1)
                known[serial] = (request, max(first, len(request.token_ns) - FIRST_LOOK))
        touched: set[tuple[int, int]] = set()
        for serial, (request, first) in list(known.items()):
            self._take(request, first, touched)
            if serial in live:
                known[serial] = (request, max(len(request.token_ns), first))
            else:
                del known[serial]
        for lane, point in touched:
            value = quantile(self._open[lane][point], 0.95)
            if value is not None:
                self._points[lane][point] = round(value, 2)
        self._forget(oldest, newest)
        return {
            name: [self._points[lane].get(point) for point in range(oldest, newest + 1)]
            for lane, name in enumerate(LANE_NAMES)
        }

    def _take(self, request: Request, first: int, touched: set[tuple[int, int]]) -> None:
        times, values = request.token_ns, self._open[request.lane]
        for i in range(first, len(times)):
            point = times[i] // POINT_NS
            values.setdefault(point, []).append((times[i] - times[i - 1]) / 1e6)
            touched.add((request.lane, point))

    def _forget(self, oldest: int, newest: int) -> None:
        for points in self._points:
            for point in [p for p in points if p < oldest]:
                del points[point]
        for values in self._open:
            for point in [p for p in values if p <= newest - OPEN]:
                del values[point]
