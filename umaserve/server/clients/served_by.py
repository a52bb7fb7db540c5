"""The daemon as a connection sees it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

from umaserve.budget import Budget
from umaserve.config import Config
from umaserve.server.clients.shares import FrameBudget, FrontTime
from umaserve.server.log.lines import Log
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.sessions import Sessions

if TYPE_CHECKING:
    from umaserve.protocol import AdminMessage, Limits


class Answers(Protocol):
    """Answers what is not a request for text; raises ``ProtocolError`` for what cannot be done."""

    def handle(self, connection: Any, message: AdminMessage) -> None: ...


class ServedBy(Protocol):
    """`umaserve.server.daemon` says what each is."""

    config: Config
    log: Log
    meters: Meters
    sessions: Sessions
    stopping: bool
    front_time: FrontTime
    partial: FrameBudget
    unsent: Budget

    @property
    def limits(self) -> Limits: ...

    @property
    def admin(self) -> Answers: ...

    def serves_others(self, program: Hashable) -> bool: ...
