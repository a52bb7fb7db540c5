"""From where on a constraint binds: behind a trigger, and behind thoughts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from umaserve.engine.constraints.later import AfterThoughts, AfterTrigger
from umaserve.engine.constraints.matcher import CannotBind, Matcher
from umaserve.engine.constraints.matchers import Either
from umaserve.wire import messages as m

PIECES = (
    "<end>", "<think>", "</think>", "a", "b", "<call>", "\n\n", "x</th", "ink>a", "<", "th", "{"
)  # fmt: skip
END, THINK, THOUGHT, A, B, CALL, GAP, X, INK, LESS, TH, BRACE = range(len(PIECES))
THOUGHTS = m.Thoughts("<think>", ("</think>",), False)
OPEN = m.Thoughts("<think>", ("</think>",), True)


class FakeModel:
    n_vocab = len(PIECES)

    def token_to_piece_bytes(self, token: int, special: bool = False) -> bytes:
        return PIECES[token].encode()

    def tokenize(self, text: str, add_special: bool = True) -> list[int]:
        if text in PIECES:
            return [PIECES.index(text)]
        return [PIECES.index(char) for char in text if char in PIECES]


class FakeInner(Matcher):
    """Allows ``first`` at first, and then the end."""

    def __init__(self, first: int = BRACE) -> None:
        self.first, self.got, self.text = first, list[int](), ""

    def accept(self, tokens: list[int]) -> None:
        self.got += tokens

    def accept_text(self, text: str) -> None:
        self.text += text

    def fill(self, mask: np.ndarray) -> bool:
        mask[:] = 1 << (END if self.got or self.text else self.first)
        return True


def allowed(matcher: Any) -> set[int] | None:
    mask = np.zeros(1, np.int32)
    if not matcher.fill(mask):
        return None
    return {token for token in range(len(PIECES)) if int(mask[0]) >> token & 1}


def thinking(inner: Any, thoughts: m.Thoughts, kind: str = m.SCHEMA) -> AfterThoughts:
    vocabulary: Any = SimpleNamespace(model=FakeModel(), ends=np.array([END]))
    return AfterThoughts(inner, m.Constraint(kind, "", thoughts=thoughts), vocabulary)


def tools(inner: Any, thoughts: m.Thoughts | None) -> AfterTrigger:
    binding = m.Constraint(m.GRAMMAR, "", triggers=("<call>",), thoughts=thoughts)
    return AfterTrigger(inner, binding, FakeModel())  # type: ignore[arg-type]


def test_thoughts_that_the_prompt_has_begun() -> None:
    inner = FakeInner()
    matcher = thinking(inner, OPEN)
    assert allowed(matcher) == set(range(1, len(PIECES)))  # an answer does not end in them
    matcher.accept([A, BRACE, THINK])
    assert allowed(matcher) == set(range(1, len(PIECES)))
    matcher.accept([THOUGHT])
    assert allowed(matcher) == {BRACE, GAP}
    matcher.accept([GAP])
    assert allowed(matcher) == {BRACE}
    matcher.accept([BRACE])
    assert inner.got == [BRACE] and allowed(matcher) == {END}


def test_thoughts_that_may_come() -> None:
    inner = FakeInner()
    matcher = thinking(inner, THOUGHTS)
    assert allowed(matcher) == {BRACE, THINK}
    matcher.accept([THINK, A, THOUGHT, BRACE])
    assert inner.got == [BRACE]


def test_thoughts_that_do_not_come() -> None:
    inner = FakeInner()
    matcher = thinking(inner, THOUGHTS)
    matcher.accept([BRACE])
    assert inner.got == [BRACE] and allowed(matcher) == {END}


def test_a_word_of_several_tokens_is_begun_and_ended() -> None:
    matcher = thinking(FakeInner(), m.Thoughts("<tha", ("</think>",), False))
    matcher._start = [LESS, TH, A]
    assert allowed(matcher) == {BRACE, LESS}
    matcher.accept([LESS])
    assert allowed(matcher) == {TH}
    matcher.accept([TH])
    assert allowed(matcher) == {A}
    matcher.accept([A])
    assert allowed(matcher) == set(range(1, len(PIECES)))


def test_what_the_form_may_begin_with_begins_no_thoughts() -> None:
    inner = FakeInner(first=THINK)
    matcher = thinking(inner, THOUGHTS)
    assert allowed(matcher) == {THINK}
    matcher.accept([THINK])
    assert inner.got == [THINK]


def test_thoughts_that_end_amid_tokens() -> None:
    inner = FakeInner()
    matcher = thinking(inner, OPEN)
    matcher.accept([X, INK])
    assert inner.text == "a"


def test_a_regular_expression_has_no_gap() -> None:
    matcher = thinking(FakeInner(), OPEN, m.REGEX)
    matcher.accept([THOUGHT])
    assert allowed(matcher) == {BRACE}


@pytest.mark.parametrize("number", range(5))
def test_all_at_once_is_as_one_by_one(number: int) -> None:
    said = [THINK, A, THOUGHT, GAP, BRACE]
    inner = FakeInner()
    matcher = thinking(inner, THOUGHTS)
    matcher.accept(said[:number])
    matcher.accept(said[number:])
    assert inner.got == [BRACE]


def test_a_trigger_in_thoughts_is_none() -> None:
    for thoughts, said in ((THOUGHTS, [THINK, A]), (OPEN, [A])):
        inner = FakeInner()
        matcher = tools(inner, thoughts)
        matcher.accept([*said, CALL, B])
        assert allowed(matcher) is None and inner.text == ""
        matcher.accept([THOUGHT, A])
        assert allowed(matcher) is None
        matcher.accept([CALL, B])
        assert inner.text == "<call>" and inner.got == [B]


def test_the_word_that_ends_thoughts_may_be_a_trigger() -> None:
    inner = FakeInner()
    matcher = tools(inner, m.Thoughts("<think>", ("</think>", "<call>"), True))
    matcher.accept([A, CALL, B])
    assert inner.text == "<call>" and inner.got == [B]


def test_thoughts_behind_a_trigger_change_nothing() -> None:
    inner = FakeInner()
    matcher = tools(inner, THOUGHTS)
    matcher.accept([A, CALL, THINK])
    assert inner.text == "<call>" and inner.got == [THINK]


# --- a call, or else what binds the text ----------------------------------------------------------


class Strict(FakeInner):
    """Cannot go on with anything but ``first``."""

    is_closed = False

    def accept(self, tokens: list[int]) -> None:
        super().accept(tokens)
        if self.got[0] != self.first:
            raise CannotBind("not this")

    def close(self) -> None:
        self.is_closed = True


def test_either_of_two_is_followed_until_the_text_tells() -> None:
    form, call = Strict(BRACE), Strict(CALL)
    either = Either(form, call)
    assert allowed(either) == {BRACE, CALL}
    either.accept([CALL])
    assert form.is_closed and not call.is_closed
    assert allowed(either) == {END}
    with pytest.raises(CannotBind):
        Either(Strict(BRACE), Strict(CALL)).accept([A])


def test_a_word_that_begins_a_call_ends_thoughts_too() -> None:
    inner = FakeInner(CALL)
    matcher = thinking(inner, m.Thoughts("<think>", ("</think>",), True, ("<call>",)))
    matcher.accept([A, CALL])
    assert inner.text == "<call>" and allowed(matcher) == {END}


def test_a_grammar_of_calls_may_follow_a_gap_behind_thoughts() -> None:
    inner = FakeInner(CALL)
    vocabulary: Any = SimpleNamespace(model=FakeModel(), ends=np.array([END]))
    binding = m.Constraint(m.GRAMMAR, "", thoughts=OPEN, is_made=True)
    matcher = AfterThoughts(inner, binding, vocabulary)
    matcher.accept([A, THOUGHT])
    assert allowed(matcher) == {CALL, GAP}
    matcher.accept([GAP])
    assert allowed(matcher) == {CALL}
