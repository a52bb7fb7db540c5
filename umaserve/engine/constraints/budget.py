"""Budgets of thoughts: a model that has thought that many tokens has its thoughts ended."""

from __future__ import annotations

import numpy as np

from umaserve.wire import messages as m

from .later import allow, first_of, tokens_of
from .matcher import Matcher
from .vocabulary import Vocabulary


class Budget(Matcher):
    """Follow another matcher, and force the end of thoughts where they have used their budget.

    Last words that the client gave come before the end.  They do not count, and nor do the words
    around thoughts.  A character that is begun is completed first, within `UTF8_BYTES` tokens.
    Each span of thoughts has the whole budget, as with llama-server.
    """

    UTF8_BYTES = 4

    def __init__(self, inner: Matcher, budget: m.Budget, vocabulary: Vocabulary) -> None:
        self._inner, self._model = inner, vocabulary.model
        thoughts = budget.thoughts
        self._start = thoughts.start.encode()
        self._ends = [word.encode() for word in (*thoughts.ends, *thoughts.calls)]
        self._longest = max(map(len, [*self._ends, self._start]))
        self._budget = budget.tokens
        self._end: list[int] = []
        if thoughts.ends:
            self._end = tokens_of(self._model, budget.last_words)
            self._end += tokens_of(self._model, thoughts.ends[0])
        self._thinks = thoughts.open
        self._used = 0
        self._forced: list[int] = []  # tokens of the end that have to come yet
        self._text = b""
        self._force()

    def accept(self, tokens: list[int]) -> None:
        self._inner.accept(tokens)
        for token in tokens:
            self._take(token)

    def fill(self, mask: np.ndarray) -> bool:
        if self._forced:
            mask[:] = 0
            allow(mask, self._forced[:1])
            return True
        return self._inner.fill(mask)

    def close(self) -> None:
        self._inner.close()

    def _take(self, token: int) -> None:
        self._text += self._model.token_to_piece_bytes(token, special=True)
        at, size = first_of(self._ends if self._thinks else [self._start], self._text)
        if at >= 0:
            self._thinks = not self._thinks
            self._used, self._forced = 0, []
            self._text = self._text[at + size :]
            self._force()
        elif self._forced:
            del self._forced[0]
            self._thinks = bool(self._forced)
        elif self._thinks:
            self._used += 1
            self._force()
        self._text = self._text[-self._longest :]

    def _force(self) -> None:
        over = self._used - self._budget
        is_late = over >= self.UTF8_BYTES or not self._begins_character()
        if self._thinks and over >= 0 and is_late:
            self._forced = self._end.copy()

    def _begins_character(self) -> bool:
        """Return whether the text ends with the first bytes of a character, and not its last."""
        for size in range(1, min(self.UTF8_BYTES, len(self._text) + 1)):
            byte = self._text[-size]
            if byte >= 0xC0:
                return size < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
            if byte < 0x80:
                return False
        return False
