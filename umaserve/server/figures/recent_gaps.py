"""The last minute of times between tokens as a curve: one point each half second and lane."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from umaserve.metrics.window import quantile
from umaserve.server.requests.request import LANE_NAMES, Request

POINT_NS = 500_000_000
POINTS = 120
OPEN = 4  # newest points that still take values
FIRST_LOOK = 2000  # tokens of a request that are looked at when it is seen first


class RecentGaps:
    """Reads the requests' own time stamps when somebody asks; nothing is done between.

    A request that begins and ends between two looks is not seen.  What is kept while nobody looks
    is the points and, of the requests that had tokens at the last look, the list of their times.
    """

    def __init__(self) -> None:
        # by serial: times of its tokens, lane, how many were looked at
        self._known: dict[int, tuple[list[int], int, int]] = {}
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
            times, first = request.token_ns, known[serial][2] if serial in known else 0
            if not first:
                first = max(bisect_right(times, oldest * POINT_NS), 1, len(times) - FIRST_LOOK)
            if times:
                known[serial] = (times, request.lane, first)
        touched: set[tuple[int, int]] = set()
        for serial, (times, lane, first) in list(known.items()):
            self._take(times, lane, first, touched)
            if serial in live:
                known[serial] = (times, lane, max(len(times), first))
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

    def _take(self, times: list[int], lane: int, first: int, touched: set[tuple[int, int]]) -> None:
        values = self._open[lane]
        for i in range(first, len(times)):
            point = times[i] // POINT_NS
            values.setdefault(point, []).append((times[i] - times[i - 1]) / 1e6)
            touched.add((lane, point))

    def _forget(self, oldest: int, newest: int) -> None:
        for points in self._points:
            for point in [p for p in points if p < oldest]:
                del points[point]
        for values in self._open:
            for point in [p for p in values if p <= newest - OPEN]:
                del values[point]
