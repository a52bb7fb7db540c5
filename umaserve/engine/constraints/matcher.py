"""Base class of matchers, which follow the tokens of one answer."""

from __future__ import annotations

import numpy as np

from umaserve.llama import Model


class CannotBind(ValueError):
    """The constraint cannot be met or compiled, or the text does not follow it; says why."""


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


def tokens_of(model: Model, text: str) -> list[int]:
    """Return the tokens of a text that stands amid another.

    Some tokenizers begin every text with a space, which is left out.
    """
    tokens = model.tokenize(text, add_special=False)
    is_space = tokens and model.token_to_piece_bytes(tokens[0], special=True) == b" "
    return tokens[1:] if is_space and not text.startswith(" ") else tokens
