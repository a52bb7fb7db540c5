"""Matchers, which follow the tokens of one answer and say which tokens may be next.

llguidance follows schemas and regular expressions, libllama grammars (GBNF).  Both leave the GIL to
other threads while they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from umaserve.wire import messages as m

from .grammar.grammars import GrammarFollower
from .later import AfterThoughts, AfterTrigger, Budget
from .matcher import CannotBind, Matcher
from .vocabulary import Vocabulary

MAX_WHY = 400  # characters
# of white space there is an end: a model that likes it would go on for ever
_OPTIONS: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}


def matcher_of(constraint: m.Constraint, vocabulary: Vocabulary) -> Matcher:
    """Compile a constraint.  Raises `CannotBind`; takes up to some 100 ms."""
    bound = Matcher() if constraint.kind == m.NOTHING else _bound(constraint, vocabulary)
    if constraint.budget is None:
        return bound
    return Budget(bound, constraint.budget, vocabulary)


def _bound(constraint: m.Constraint, vocabulary: Vocabulary) -> Matcher:
    inner = _inner(constraint, vocabulary)
    if constraint.calls:
        calls = m.Constraint(m.GRAMMAR, constraint.calls, is_made=True)
        inner = Either(inner, _inner(calls, vocabulary))
    if constraint.triggers:
        return AfterTrigger(inner, constraint, vocabulary.model)
    if constraint.thoughts is not None:
        return AfterThoughts(inner, constraint, vocabulary)
    return inner


def _inner(constraint: m.Constraint, vocabulary: Vocabulary) -> Matcher:
    if constraint.kind == m.GRAMMAR:
        return GrammarFollower(constraint, vocabulary.grammars)
    return SchemaMatcher(constraint, vocabulary)


class Either(Matcher):
    """Follow two constraints, and go on with the other where the answer leaves one of them.

    One is that of the text, the other that of a tool's call.
    """

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


class SchemaMatcher(Matcher):
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

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotBind(_in_a_line(self._matcher.get_error()))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:MAX_WHY] or "it cannot be followed"
