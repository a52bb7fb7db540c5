"""Fair queue of turns where many programs ask for the same thing: each gets an equal share.

Hierarchical start-time fair queueing (Goyal, Vin and Cheng, 1996).  A program that asks for much at
once takes many turns, one behind the other; an item that costs more takes more turns.  A program
that comes later takes its first turn right behind the items that have begun.  It therefore waits
for one item of each other program.  Within a program its apps share its turns by this rule too, so
more apps do not increase a program's share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Asker(NamedTuple):
    """A program, and its app where its apps are told apart."""

    program: Hashable = None
    app: Hashable = None


NOBODY = Asker()


class Turn:
    """A turn of a program, held until `Turns.leave`.

    ``at`` is its number, which changes where another item of the program begins or leaves before
    it.  ``within`` is its turn among those of the program's apps, where these are told apart.
    """

    __slots__ = ("at", "begun", "cost", "program", "within")

    def __init__(self, program: Hashable, cost: int, within: Turn | None = None) -> None:
        self.at, self.program, self.cost, self.within = 0, program, cost, within
        self.begun = False


class _Program:
    """Turns of a program that have not begun, in order, and the number of the first turn."""

    def __init__(self) -> None:
        self.next = 1
        self.held = 0
        self.waiting: list[Turn] = []
        self.apps: Turns | None = None

    def arrange(self) -> None:
        """Give each turn that did not begin its number."""
        if self.apps is not None:
            self.waiting.sort(key=lambda turn: turn.within.at if turn.within else 0)
        at = self.next
        for turn in self.waiting:
            turn.at = at
            at += turn.cost


class Turns:
    """Deals turns to programs.  Smaller turns go first; equal ones in order of arrival."""

    def __init__(self) -> None:
        self._begun = 0  # the latest turn that has begun
        self._programs: dict[Hashable, _Program] = {}  # those that hold some

    def take(self, program: Hashable, cost: int = 1, app: Hashable = None) -> Turn:
        """The next turn of ``program`` for its ``app``; it costs ``cost`` turns.

        ``app`` of ``None``: the program's apps are not told apart.
        """
        own = self._programs.setdefault(program, _Program())
        within = None
        if app is not None:
            own.apps = own.apps or Turns()
            within = own.apps.take(app, cost)
        if not own.waiting:
            own.next = max(self._begun + 1, own.next)
        turn = Turn(program, cost, within)
        own.held += 1
        own.waiting.append(turn)
        own.arrange()
        return turn

    def begin(self, turn: Turn) -> None:
        """An item is being worked on."""
        own = self._programs[turn.program]
        self._begun = max(self._begun, turn.at)
        if own.apps is not None and turn.within is not None:
            own.apps.begin(turn.within)
        turn.begun = True
        own.waiting.remove(turn)
        own.next += turn.cost
        own.arrange()

    def leave(self, turn: Turn) -> None:
        """An item is over; one that never began does not count against its program."""
        own = self._programs[turn.program]
        own.held -= 1
        if not own.held:
            del self._programs[turn.program]
            return
        if own.apps is not None and turn.within is not None:
            own.apps.leave(turn.within)
        if not turn.begun:
            own.waiting.remove(turn)
            own.arrange()


class Line(Generic[T]):
    """Items that wait, by their turns; items of equal turns are in order of arrival."""

    def __init__(self) -> None:
        self._items: dict[Turn, T] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __contains__(self, turn: object) -> bool:
        return turn in self._items

    def add(self, turn: Turn, item: T) -> None:
        """``item`` waits from now on."""
        self._items[turn] = item

    def remove(self, turn: Turn) -> None:
        """The item leaves the line; nothing happens where it is not in it."""
        self._items.pop(turn, None)

    def first(self) -> T | None:
        """The item whose turn it is; it stays in the line."""
        turn = self._first()
        return None if turn is None else self._items[turn]

    def pop_first(self) -> T | None:
        """The item whose turn it is leaves the line."""
        turn = self._first()
        return None if turn is None else self._items.pop(turn)

    def _first(self) -> Turn | None:
        return min(self._items, key=attrgetter("at"), default=None)

    def oldest(self) -> T | None:
        """The item that has been in the line longest."""
        return next(iter(self._items.values()), None)
