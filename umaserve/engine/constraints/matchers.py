"""What follows the tokens of one answer and says which may be next.

Schemas and regular expressions are llguidance's, grammars (GBNF) libllama's.  Both leave the GIL to
others while they compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from umaserve.wire import messages as m

from .errors import CannotBind
from .grammars import GrammarFollower

if TYPE_CHECKING:
    from umaserve.llama import Model

    from .vocabulary import Vocabulary

MAX_WHY = 400  # characters
# of white space there is an end: a model that likes it would go on for ever
_OPTIONS: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}


class Matcher(Protocol):
    """Of one answer, from its first token on; for one thread."""

    def accept(self, tokens: list[int]) -> None:
        """These came next.  Raises `CannotBind`."""

    def fill(self, mask: np.ndarray) -> bool:
        """Write into ``mask`` int32[words] what may be next; False: anything.  May raise."""

    def close(self) -> None:
        """Free what is not Python's."""


class Inner(Matcher, Protocol):
    """One that can begin amid a token."""

    def accept_text(self, text: str) -> None:
        """This came next, before any token of `accept`.  Raises `CannotBind`."""


def matcher_of(constraint: m.Constraint, vocabulary: Vocabulary) -> Matcher:
    """Compile a constraint.  Raises `CannotBind`; takes up to some 100 ms."""
    inner: Inner
    if constraint.kind == m.GRAMMAR:
        inner = GrammarFollower(constraint, vocabulary.grammars)
    else:
        inner = SchemaMatcher(constraint, vocabulary)
    if not constraint.triggers:
        return inner
    return AfterTrigger(inner, constraint.triggers, constraint.is_made, vocabulary.model)


class SchemaMatcher:
    """A JSON schema or a regular expression."""

    def __init__(self, constraint: m.Constraint, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher, LLParserLimits

        text = constraint.text
        try:
            if constraint.kind == m.REGEX:
                grammar = LLMatcher.grammar_from_regex(text)
            elif text == "false":
                raise CannotBind("it allows nothing")
            else:
                schema = "{}" if text == "true" else text
                grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
        except ValueError as error:
            raise CannotBind(_in_a_line(str(error))) from None
        limits = LLParserLimits(verbose_errors=False)
        self._matcher = LLMatcher(vocabulary.get(), grammar, log_level=0, limits=limits)
        self._model = vocabulary.model
        self._check()

    def accept(self, tokens: list[int]) -> None:
        for token in tokens:
            self._matcher.consume_token(token)
        self._check()

    def accept_text(self, text: str) -> None:
        self.accept(self._model.tokenize(text, add_special=False))

    def fill(self, mask: np.ndarray) -> bool:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        return True

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotBind(_in_a_line(self._matcher.get_error()))


class AfterTrigger:
    """Lets anything come until a trigger is written, and gives ``inner`` what follows.

    The trigger itself belongs to that where it ``is_part``.
    """

    def __init__(self, inner: Inner, triggers: tuple[str, ...], is_part: bool, model: Model):
        self._inner, self._is_part, self._model = inner, is_part, model
        self._triggers = [word.encode() for word in triggers]
        self._waits = True
        self._text = b""  # the end of the text, as long as a trigger may be

    def accept(self, tokens: list[int]) -> None:
        for number, token in enumerate(tokens):
            if not self._waits:
                self._inner.accept(tokens[number:])
                return
            self._look(token)

    def fill(self, mask: np.ndarray) -> bool:
        return not self._waits and self._inner.fill(mask)

    def close(self) -> None:
        self._inner.close()

    def _look(self, token: int) -> None:
        self._text += self._model.token_to_piece_bytes(token, special=True)
        found = [(at, word) for word in self._triggers if (at := self._text.find(word)) >= 0]
        if not found:
            self._text = self._text[-max(map(len, self._triggers)) :]
            return
        self._waits = False
        at, word = min(found)
        # the trigger may begin or end amid a token
        rest = self._text[at if self._is_part else at + len(word) :]
        self._inner.accept_text(rest.decode("utf-8", "replace"))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:MAX_WHY] or "it cannot be followed"
