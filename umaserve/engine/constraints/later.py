"""Constraints that bind later than from an answer's first token on, and budgets of thoughts."""

from __future__ import annotations

import numpy as np

from umaserve.llama import Model
from umaserve.sampling.mask import allow, allows, forbid
from umaserve.wire import messages as m

from .matcher import Matcher, tokens_of
from .vocabulary import Vocabulary

GAPS = ("\n", "\n\n")  # that models write behind their thoughts


class AfterTrigger(Matcher):
    """A grammar of tools: anything may come until a trigger is written, which is a part of it.

    In thoughts there are no triggers, as with llama-server; the word that ends them may be one.
    """

    def __init__(self, inner: Matcher, constraint: m.Constraint, model: Model) -> None:
        self._inner, self._model = inner, model
        self._triggers = [word.encode() for word in constraint.triggers]
        thoughts = constraint.thoughts or m.Thoughts("", (), False)
        self._start = thoughts.start.encode()
        self._ends = [word.encode() for word in thoughts.ends]
        self._longest = max(map(len, [*self._triggers, *self._ends, self._start]))
        self._thinks, self._may_think = thoughts.open, bool(thoughts.start) and not thoughts.open
        self._waits = True
        self._text = b""  # the end of the text, as long as such a word may be

    def accept(self, tokens: list[int]) -> None:
        for number, token in enumerate(tokens):
            if not self._waits:
                self._inner.accept(tokens[number:])
                return
            self._text += self._model.token_to_piece_bytes(token, special=True)
            self._look()

    def fill(self, mask: np.ndarray) -> bool:
        return not self._waits and self._inner.fill(mask)

    def close(self) -> None:
        self._inner.close()

    def _look(self) -> None:
        if self._thinks:
            at, _ = first_of(self._ends, self._text)
            if at >= 0:
                self._thinks, self._text = False, self._text[at:]
        if not self._thinks:
            at, _ = first_of(self._triggers, self._text)
            start = self._text.find(self._start) if self._may_think else -1
            if start >= 0 and not 0 <= at < start:
                self._thinks, self._may_think = True, False
                self._text = self._text[start + len(self._start) :]
                self._look()
            elif at >= 0:
                self._waits = False
                # it may begin amid a token
                self._inner.accept_text(self._text[at:].decode("utf-8", "replace"))
        self._text = self._text[-self._longest :]


class AfterThoughts(Matcher):
    """Bind an answer behind the model's thoughts, which have an end.

    Where the prompt has not begun them, the model may, unless their first token could begin what
    is bound.  An answer does not end in thoughts.
    """

    def __init__(self, inner: Matcher, constraint: m.Constraint, vocabulary: Vocabulary) -> None:
        assert constraint.thoughts is not None
        model = vocabulary.model
        self._inner, self._model = inner, model
        self._ends = [word.encode() for word in constraint.thoughts.ends]
        self._calls = [word.encode() for word in constraint.thoughts.calls]
        self._longest = max(map(len, [*self._ends, *self._calls]))
        self._last: list[int] = vocabulary.ends.tolist()
        self._words = -(-model.n_vocab // 32)
        self._thinks = constraint.thoughts.open
        # what begins them and has not come yet
        self._start = [] if self._thinks else tokens_of(model, constraint.thoughts.start)
        self._gaps: list[int] = []  # what may stand between the thoughts and the answer
        if constraint.kind == m.SCHEMA or constraint.is_made or constraint.calls:
            found = [tokens_of(model, text) for text in GAPS]
            self._gaps = [tokens[0] for tokens in found if len(tokens) == 1]
        self._begun = False
        self._has_thought = False
        self._text = b""
        if self._start:
            mask = np.zeros(self._words, np.int32)
            inner.fill(mask)
            if allows(mask, self._start[0]):
                self._start = []

    def accept(self, tokens: list[int]) -> None:
        for number, token in enumerate(tokens):
            if self._thinks:
                self._think(token)
            elif self._start and token == self._start[0]:
                self._begun = True
                del self._start[0]
                self._thinks = not self._start
            elif self._has_thought and token in self._gaps:
                self._has_thought = False
            else:
                self._start, self._has_thought = [], False
                self._inner.accept(tokens[number:])
                return

    def fill(self, mask: np.ndarray) -> bool:
        if self._thinks:
            mask[:] = -1
            forbid(mask, self._last)
            return True
        if self._begun and self._start:  # amid the word that begins thoughts
            mask[:] = 0
        elif not self._inner.fill(mask):
            return False
        allow(mask, self._start[:1])
        if self._has_thought:
            allow(mask, self._gaps)
        return True

    def close(self) -> None:
        self._inner.close()

    def _think(self, token: int) -> None:
        self._text += self._model.token_to_piece_bytes(token, special=True)
        at, size = first_of([*self._ends, *self._calls], self._text)
        if at >= 0:
            if self._text[at : at + size] in self._calls:
                size = 0  # the word is a part of what is bound
            rest = self._text[at + size :]  # of the token in which they end
            self._thinks, self._has_thought = False, not rest.strip()
            if rest.strip():
                self._inner.accept_text(rest.decode("utf-8", "replace"))
        self._text = self._text[-self._longest :]


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


def first_of(words: list[bytes], text: bytes) -> tuple[int, int]:
    """Where the first of ``words`` begins in ``text``, and its length; -1 where none does."""
    found = [(at, -len(word)) for word in words if (at := text.find(word)) >= 0]
    at, size = min(found, default=(-1, 0))
    return at, -size
