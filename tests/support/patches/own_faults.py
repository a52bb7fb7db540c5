"""Faults of the daemon's own, forced inside its process: ``DaemonProcess(patch=own_faults)``.

What a request is called says where the daemon's code raises when it works on that request.
"""

from __future__ import annotations

from typing import Any

from umaserve.server.figures.scorecard import Scorecard
from umaserve.server.requests import ends, rows
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request


class OwnFault(Exception):
    """Raised on purpose."""


def _boom(*_: Any, **__: Any) -> Any:
    raise OwnFault("on purpose")


def _boom_for(name: str, method: Any, request_at: int) -> Any:
    """``method``, which raises where the argument at that index is a request of that name."""

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if arguments[request_at].id.startswith(name):
            _boom()
        return method(*arguments, **keywords)

    return wrapped


def own_faults() -> None:
    create = Request.create

    def creating(*arguments: Any) -> Request:
        request = create(*arguments)
        if request.id.startswith("bad-text"):
            push, count = request.assembler.push, [0]

            def pushing(*piece: bytes) -> tuple[str, bool]:
                count[0] += 1
                return push(*piece) if count[0] < 5 else _boom()

            request.assembler.push = pushing  # type: ignore[method-assign]
        if request.id.startswith("bad-rest"):
            request.assembler.finish = _boom  # type: ignore[method-assign]
        if request.id.startswith("bad-token"):
            request.encode = _boom  # type: ignore[assignment]
        return request

    Request.create = creating  # type: ignore[method-assign, assignment]
    rows.submission = _boom_for("bad-submit", rows.submission, 0)
    ends._put_end = _boom_for("bad-end", ends._put_end, 0)
    Meters.sent = _boom_for("bad-count", Meters.sent, 1)  # type: ignore[method-assign]

    read_ticks = Meters.read_ticks

    def reading(self: Meters, engine: Any, **keywords: Any) -> None:
        if any(r.id.startswith("bad-ticks") for r in engine.requests.values()):
            _boom()
        read_ticks(self, engine, **keywords)

    Meters.read_ticks = reading  # type: ignore[method-assign]

    read = Scorecard.read

    def scoring(self: Scorecard) -> Any:
        bad = any(r.id.startswith("bad-score") for r in self._sessions.live.values())
        return _boom() if bad else read(self)

    Scorecard.read = scoring  # type: ignore[method-assign]
