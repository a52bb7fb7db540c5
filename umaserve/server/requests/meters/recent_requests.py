"""The newest requests that ended, for people: who asked, in which lane, how much was cached."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from umaserve.server.requests.request import LANE_NAMES

if TYPE_CHECKING:
    from umaserve.protocol.events import Timings
    from umaserve.server.requests.request import Request

KEPT = 24


class RecentRequests:
    """No text and no id of a client is in it: an id may be a text."""

    def __init__(self) -> None:
        self._rows: deque[tuple[float, dict[str, Any]]] = deque(maxlen=KEPT)

    def add(self, request: Request, reason: str, timings: Timings) -> None:
        """A request's last event was told; ``reason``: as in `eos`."""
        usage, (lane, why) = request.usage(), request.lane_now()
        row = {
            "serial": request.serial, "app": request.app, "key": request.message.key,
            "model": request.model or None,
            "lane": LANE_NAMES[lane], "lane_reason": why, "reason": reason,
            **msgspec.to_builtins(usage), **msgspec.to_builtins(timings),
        }  # fmt: skip
        self._rows.append((time.monotonic(), row))

    def read(self) -> list[dict[str, Any]]:
        """The newest last, each with ``age_s``: the seconds since its end."""
        now_s = time.monotonic()
        return [{**row, "age_s": round(now_s - at_s, 3)} for at_s, row in self._rows]
