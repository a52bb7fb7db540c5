"""An answer that follows one of two constraints: a call of a tool, or what binds the text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .errors import CannotBind
from .matcher import Matcher


class Either(Matcher):
    """Follow two constraints, and go on with the other where the answer leaves one of them."""

    def __init__(self, first: Matcher, second: Matcher) -> None:
        self._branches = [first, second]

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

    def close(self) -> None:
        for branch in self._branches:
            branch.close()

    def _each(self, do: Callable[[Matcher], None]) -> None:
        """Do something with each branch; drop a branch that cannot, unless it is the last."""
        for branch in [*self._branches]:
            try:
                do(branch)
            except CannotBind:
                if len(self._branches) == 1:
                    raise
                self._branches.remove(branch)
                branch.close()
