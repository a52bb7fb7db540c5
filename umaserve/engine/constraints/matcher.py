"""Base class of matchers, which follow the tokens of one answer."""

from __future__ import annotations

import numpy as np


class Matcher:
    """Matcher of one answer, from its first token on; for one thread.  This one lets any come."""

    def accept(self, tokens: list[int]) -> None:
        """Follow the tokens that came next.  Raises `CannotBind`."""

    def accept_text(self, text: str) -> None:
        """Follow text that came next, before any token of `accept`.  Raises `CannotBind`."""

    def fill(self, mask: np.ndarray) -> bool:
        """Write tokens that may be next into ``mask`` int32[words]; False: any may.  May raise."""
        return False

    def close(self) -> None:
        """Free what is not Python's."""
