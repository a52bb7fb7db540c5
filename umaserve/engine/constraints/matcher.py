"""What follows the tokens of one answer, as the others see it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Matcher(Protocol):
    """Of one answer, from its first token on; for one thread."""

    def accept(self, tokens: list[int]) -> None:
        """These came next.  Raises `CannotBind`."""

    def fill(self, mask: np.ndarray) -> bool:
        """Write into ``mask`` int32[words] what may be next; False: anything.  May raise."""

    def copy(self) -> Matcher:
        """One that other tokens may come next for.  It need not be closed."""

    def close(self) -> None:
        """Free what is not Python's."""


class Inner(Matcher, Protocol):
    """One that can begin amid a token."""

    def accept_text(self, text: str) -> None:
        """This came next, before any token of `accept`.  Raises `CannotBind`."""

    def copy(self) -> Inner:
        """As of `Matcher`."""
