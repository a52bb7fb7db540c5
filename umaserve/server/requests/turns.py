"""Whose turn it is where many programs ask for the same thing: each gets the same share.

Start-time fair queueing (Goyal, Vin and Cheng, 1996).  A program that asks for much at once takes
many turns, one behind the other; an item that costs more takes more of them.  A program that comes
later takes its first turn right behind what has begun, so it waits for one item of each other
program.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns:
    """Deals turns to programs.  Smaller turns go first; equal ones in order of arrival."""

    def __init__(self) -> None:
        self._begun = 0  # the latest turn that has begun
        self._last: dict[Hashable, int] = {}  # that each program which holds some has taken
        self._held: dict[Hashable, int] = {}  # items of each that are not over

    def take(self, program: Hashable, cost: int = 1) -> int:
        """The next turn of ``program``, which holds it until `leave`; it costs ``cost`` turns."""
        turn = max(self._begun, self._last.get(program, 0)) + 1
        self._last[program] = turn + cost - 1
        self._held[program] = self._held.get(program, 0) + 1
        return turn

    def begin(self, turn: int) -> None:
        """An item is being worked on."""
        self._begun = max(self._begun, turn)

    def leave(self, program: Hashable, *, begun: bool, cost: int = 1) -> None:
        """An item is over, for which ``cost`` was taken; what never began does not count against
        its program."""
        held = self._held.pop(program, 0) - 1
        if held > 0:
            self._held[program] = held
            self._last[program] -= 0 if begun else cost
        else:
            self._last.pop(program, None)


class Line(Generic[T]):
    """Items that wait, by turn.  ``key`` tells items apart; it also orders items of equal turns."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[int, T]] = {}
        self._order: list[tuple[int, int]] = []  # a heap of (turn, key); old entries are skipped

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter([item for _, item in self._items.values()])

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def add(self, key: int, turn: int, item: T) -> None:
        """``item`` waits from now on."""
        self._items[key] = (turn, item)
        heapq.heappush(self._order, (turn, key))
        if len(self._order) > 64 + 2 * len(self._items):  # many have left from the middle
            self._order = [(turn, key) for key, (turn, _) in self._items.items()]
            heapq.heapify(self._order)

    def remove(self, key: int) -> None:
        """The item leaves the line; nothing happens where it is not in it."""
        self._items.pop(key, None)

    def first(self) -> T | None:
        """The item whose turn it is; it stays in the line."""
        while self._order:
            turn, key = self._order[0]
            found = self._items.get(key)
            if found is not None and found[0] == turn:
                return found[1]
            heapq.heappop(self._order)
        return None

    def pop_first(self) -> T | None:
        """The item whose turn it is leaves the line."""
        item = self.first()
        if item is not None:
            del self._items[self._order[0][1]]
        return item

    def oldest(self) -> T | None:
        """The item that has been in the line longest."""
        for _, item in self._items.values():
            return item
        return None
