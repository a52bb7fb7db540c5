"""Requests that have no row of the session table yet, and which of them gets the next.

Interactive requests go before background ones.  In each lane the programs that ask get the same
share, and the apps of a program the same part of its share.  They take turns
(`umaserve.server.requests.queue.turns`).  Room is bounded, and where there is none left, the
program that waits with most requests makes room for one that waits with fewer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from umaserve.server.requests.life import Stage
from umaserve.server.requests.queue.turns import Line, Turns
from umaserve.server.requests.request import Request
from umaserve.wire.messages import LANE_BACKGROUND, LANE_INTERACTIVE
from umaserve.wire.states import has_aged


class WaitingRoom:
    """``most`` requests may wait.  ``reserved`` rows are never taken by background requests, so
    that an interactive request finds a row.  Of those ``spare`` are never taken by a program that
    has all others, so that one that comes later finds one too."""

    def __init__(self, most: int, reserved: int, spare: int = 0) -> None:
        self.most = most
        self._reserved = reserved
        self._spare = spare
        self._lines = (Line[Request](), Line[Request]())  # by lane
        self._turns = (Turns(), Turns())
        self._without_text: dict[int, Request] = {}  # their conversations are rendered

    # --- who waits --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(self.counts())

    def counts(self) -> tuple[int, int]:
        """Requests that wait, per lane."""
        background = sum(request.lane for request in self._without_text.values())
        interactive = len(self._without_text) - background
        return len(self._lines[0]) + interactive, len(self._lines[1]) + background

    def all(self) -> list[Request]:
        return [*self._lines[0], *self._lines[1], *self._without_text.values()]

    def could_start(self, request: Request, free: int) -> bool:
        """Whether a new request would get one of ``free`` rows at once."""
        if self._lines[request.lane]:
            return False
        return free - len(self._without_text) > (self._reserved if request.lane else 0)

    # --- in and out -------------------------------------------------------------------------------

    def take_turn(self, request: Request) -> None:
        """A request that is new, or new in its lane."""
        program, app = request.asker
        request.turn = self._turns[request.lane].take(program, request.cost, app)

    def begin(self, request: Request) -> None:
        """It has been given a sequence."""
        if not request.turn.begun:
            self._turns[request.lane].begin(request.turn)

    def over(self, request: Request) -> None:
        """It has ended."""
        self._turns[request.lane].leave(request.turn)

    def enter(self, request: Request) -> None:
        """It waits for a row, in its turn."""
        request.enter(Stage.WAITING)
        line, turn = self._lines[request.lane], request.turn
        line.add(turn, request)
        request.leave = lambda: line.remove(turn)

    def wait_for_text(self, request: Request, forget: Callable[[], None]) -> None:
        """It waits for its text; ``forget`` is called where it does not want that any more."""
        request.enter(Stage.RENDERING)
        self._without_text[request.serial] = request

        def leave() -> None:
            self._without_text.pop(request.serial, None)
            forget()

        request.leave = leave

    def change_lane(self, request: Request, lane: int) -> None:
        """Its turn is the newest of its program in that lane."""
        waits, has_begun = request.turn in self._lines[request.lane], request.turn.begun
        if waits:
            request.stop_waiting()
        self.over(request)
        request.lane = lane
        self.take_turn(request)
        if waits:
            self.enter(request)
        elif has_begun:
            self._turns[lane].begin(request.turn)

    # --- whose turn it is -------------------------------------------------------------------------

    def next(self, free: int, running: Iterable[Request]) -> Request | None:
        """The request that gets one of ``free`` rows, while others have theirs; it stays here
        until it is taken out."""
        interactive, background = self._lines
        if background and (self._is_due(running) or not interactive):
            if interactive or free > self._reserved:
                return background.first()
            return None
        first = interactive.first()
        if first is None or free > self._spare:
            return first
        return self._of_others(first, Counter(request.program for request in running), free)

    def _of_others(self, first: Request, rows: Counter[int], free: int) -> Request | None:
        """The first one of a program that may have one of the last rows."""
        most = rows.total() + free - self._spare
        if rows[first.program] < most:
            return first
        others = [request for request in self._lines[0] if rows[request.program] < most]
        return min(others, key=_place, default=None)

    def _is_due(self, running: Iterable[Request]) -> bool:
        """Ageing: none has a row, and the oldest has waited long; then one goes before all."""
        oldest = self._lines[LANE_BACKGROUND].oldest()
        if oldest is None or not self._lines[LANE_INTERACTIVE]:
            return False
        if not has_aged(oldest.arrived_ns, time.monotonic_ns()):
            return False
        return not any(request.lane for request in running)

    # --- no room ----------------------------------------------------------------------------------

    def who_makes_room(self, new: Request) -> Request | None:
        """The waiting request that ends for a new one; ``None``: the new one is refused.

        A program makes room for one that waits with fewer requests, its newest background request
        first.  So does an app for another one of its program.  An interactive request takes the
        place of a background one of its own program too.
        """
        waiting = self.all()
        own = [request for request in waiting if request.program == new.program]
        last = max(own, key=_newness, default=new)
        if new.lane == LANE_INTERACTIVE and last.lane == LANE_BACKGROUND:
            return last
        victim = _of_the_largest(waiting, new, lambda request: request.program)
        return victim or _of_the_largest(own, new, lambda request: request.asker)


def _of_the_largest(
    waiting: Iterable[Request], new: Request, group: Callable[[Request], Hashable]
) -> Request | None:
    """The newest request of the group with most, where ``new`` is of one with fewer."""
    groups: dict[Hashable, list[Request]] = {}
    for request in waiting:
        groups.setdefault(group(request), []).append(request)
    own = group(new)
    own_count = len(groups.pop(own, ()))
    for others in sorted(groups.values(), key=len, reverse=True):
        victim = max(others, key=_newness)
        is_urgent = victim.lane == LANE_BACKGROUND and new.lane == LANE_INTERACTIVE
        # where both wait alike it would only be the other's turn to be refused
        if own_count + 1 < len(others) + is_urgent:
            return victim
    return None


def _place(request: Request) -> tuple[int, int]:
    return (request.turn.at, request.serial)


def _newness(request: Request) -> tuple[int, int, int]:
    """The largest makes room first."""
    return (request.lane, *_place(request))
