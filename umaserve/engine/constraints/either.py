"""An answer that follows one of two constraints: a call of a tool, or what binds the text."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from .errors import CannotBind
from .matcher import Matcher


class Either(Matcher):
    """Follow two constraints, and go on with the other where the answer leaves one of them.

    A copy raises `CannotBind` instead: a branch that cannot be copied refuses everything there.
    """

    def __init__(self, first: Matcher, second: Matcher) -> None:
        self._branches = [first, second]
        self._is_copy = False

    def accept(self, tokens: list[int]) -> None:
        self._each(lambda branch: branch.accept(tokens))

    def accept_text(self, text: str) -> None:
        self._each(lambda branch: branch.accept_text(text))

    def fill(self, mask: np.ndarray) -> bool:
        allowed = np.zeros_like(mask)

        def add(branch: Matcher) -> None:
            if branch.fill(mask):
                allowed[:] |= mask

        self._each(add)
        mask[:] = allowed
        return True

    def copy(self) -> Either:
        other = copy(self)
        other._branches = [branch.copy() for branch in self._branches]
        other._is_copy = True
        return other

    def close(self) -> None:
        for branch in self._branches:
            branch.close()

    def _each(self, do: Callable[[Matcher], None]) -> None:
        """Do something with each branch; drop a branch that cannot, unless it is the last."""
        for branch in [*self._branches]:
            try:
                do(branch)
            except CannotBind:
                if self._is_copy or len(self._branches) == 1:
                    raise
                self._branches.remove(branch)
                branch.close()
