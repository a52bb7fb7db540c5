"""A limited amount, divided among programs or keys that do not know of each other."""

from __future__ import annotations

from collections.abc import Hashable


class Budget:
    """Amount of up to ``most``, divided by dynamic thresholds (Choudhury and Hahne, 1998).

    A program may hold as much as remains free: a lone program gets half, two get a third each.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._total = 0
        self._held: dict[Hashable, int] = {}

    def held_by(self, program: Hashable) -> int:
        return self._held.get(program, 0)

    def take(self, program: Hashable, amount: int) -> bool:
        """Whether ``program`` may have so much more; it has it then."""
        held = self._held.get(program, 0)
        if held + amount > self.most - self._total - amount:
            return False
        self.change(program, amount)
        return True

    def change(self, program: Hashable, amount: int) -> None:
        """It holds so much more, or less, whether it may or not."""
        held = self._held.pop(program, 0) + amount
        self._total += amount
        if held:
            self._held[program] = held

    def is_over(self, program: Hashable) -> bool:
        """Whether ``program`` holds more than it leaves to others."""
        return self._held.get(program, 0) > self.most - self._total
