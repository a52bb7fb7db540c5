"""Masks behind drafted tokens: those that a matcher makes that has seen nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.waiting import until
from umaserve import llama
from umaserve.drafts.wanted import MOST_EACH
from umaserve.engine.constraints.bound import Bound
from umaserve.engine.constraints.matchers import SchemaMatcher, matcher_of
from umaserve.engine.constraints.vocabulary import Vocabulary
from umaserve.engine.samplers.masks import _is_ahead
from umaserve.sampling import params as p
from umaserve.sampling.ahead import MADE_BITS, Ahead
from umaserve.sampling.mask import allows, words_of
from umaserve.wire import messages as m
from umaserve.wire import table as t

SLOT, N_PROMPT = 1, 7
LIST = m.Constraint(
    m.SCHEMA,
    '{"type": "array", "items": {"anyOf": [{"enum": [1, 22, "b é"]}, {"type": "string"}]}}',
)
WORDS = m.Constraint(m.REGEX, "(red, |green, |blue, ){3,30}end")
THOUGHTS = m.Thoughts("<think>", ("</think>",), False)
GRAMMAR = m.Constraint(m.GRAMMAR, 'root ::= "call " ("ab" | "cd"){4,40}')
KINDS = [
    LIST,
    WORDS,
    m.Constraint(LIST.kind, LIST.text, thoughts=THOUGHTS),
    m.Constraint(WORDS.kind, WORDS.text, triggers=("red", "blue")),
]


@pytest.fixture(scope="module")
def vocabulary(model: llama.Model) -> Vocabulary:
    return Vocabulary(model)


class Row:
    """A row of the table and its `Bound`; the test is the ticks."""

    def __init__(self, vocabulary: Vocabulary, constraint: m.Constraint) -> None:
        self.vocabulary, self.constraint = vocabulary, constraint
        self.table, fd = t.SessionTable.create(t.TableSpec(2, 600))
        os.close(fd)
        self.samplers = p.SamplerTable(2, MOST_EACH)
        self.ahead, self.said, compiled = self.samplers.ahead, list[int](), threading.Event()
        message = m.Submit(1, SLOT, constraint=constraint)
        self.bound = Bound(message, vocabulary, self.table, self.samplers, lambda _: compiled.set())
        others = set(threading.enumerate())
        self.bound.start()
        (self.thread,) = set(threading.enumerate()) - others
        assert compiled.wait(30) and not self.bound.error
        self.table.n_prompt[SLOT] = self.table.n_tokens[SLOT] = N_PROMPT
        self.bound.attach()

    @property
    def n_tokens(self) -> int:
        return int(self.table.n_tokens[SLOT])

    def _wake(self) -> None:
        os.write(int(self.samplers.whole[SLOT, p.CONSTRAINT]) - 1, b"x")

    def say(self, *tokens: int) -> None:
        n = self.n_tokens
        self.table.tokens[SLOT, n : n + len(tokens)] = tokens
        self.table.n_tokens[SLOT] = n + len(tokens)
        self.said += tokens
        self._wake()

    def draft(self, tokens: list[int], at: int | None = None) -> int:
        """Say what a tick verifies; returns the number of these drafts."""
        self.ahead.number[SLOT] += 1
        self.ahead.at[SLOT] = self.n_tokens if at is None else at
        self.ahead.counts[SLOT], self.ahead.tokens[SLOT, : len(tokens)] = len(tokens), tokens
        self.ahead.number[SLOT] += 1
        self._wake()
        return int(self.ahead.number[SLOT])

    def mask(self) -> np.ndarray | None:
        """That for the row's tokens, once it is there."""
        whole = self.samplers.whole[SLOT]
        until(lambda: whole[p.MASK_AT] == self.n_tokens)
        return self.at(int(whole[p.NEXT_MASK]))

    def made(self, number: int) -> int:
        made = int(self.ahead.made[SLOT])
        return made % (1 << MADE_BITS) if made >> MADE_BITS == number else 0

    def behind(self, number: int, count: int) -> np.ndarray | None:
        """The mask behind the first ``count`` of the drafts with this number."""
        until(lambda: self.made(number) >= count)
        return self.at(int(self.ahead.masks[SLOT, count - 1]))

    def round(self, number: int, verified: int) -> np.ndarray | None:
        """The mask that a tick takes behind drafts that were verified."""
        whole = self.samplers.whole[SLOT]
        until(lambda: whole[p.MASK_AT] == self.n_tokens or self.made(number) >= verified)
        return self.mask() if self.made(number) < verified else self.behind(number, verified)

    def at(self, address: int) -> np.ndarray | None:
        masks = [self.bound._mask, *self.bound._ahead.masks]
        found = [mask for mask in masks if mask.ctypes.data == address]
        assert bool(found) == bool(address)
        return found[0].copy() if found else None

    def fresh(self, *more: int) -> np.ndarray | None:
        """What a matcher says that has seen nothing but the row's tokens and these."""
        matcher = matcher_of(self.constraint, self.vocabulary)
        mask = np.zeros(words_of(self.vocabulary.model.n_vocab), np.int32)
        if tokens := [*self.said, *more]:
            matcher.accept(tokens)
        binds = self.vocabulary.fill(matcher, mask)
        matcher.close()
        return mask if binds else None

    def path(self, choose: np.random.Generator, n: int) -> list[int]:
        """Up to ``n`` tokens that may come, none of which ends the answer."""
        found: list[int] = []
        while len(found) < n:
            mask, some = self.fresh(*found), choose.permutation(self.vocabulary.model.n_vocab)
            may_come = [
                int(token) for token in some
                if (mask is None or allows(mask, token)) and token not in self.vocabulary.ends
            ]  # fmt: skip
            if not may_come:
                break
            found.append(may_come[0])
        return found

    def tokens(self, text: str) -> list[int]:
        return self.vocabulary.model.tokenize(text, add_special=False)


@pytest.fixture
def a_row(vocabulary: Vocabulary) -> Iterator[Callable[..., Row]]:
    rows: list[Row] = []

    def make(constraint: m.Constraint) -> Row:
        rows.append(Row(vocabulary, constraint))
        return rows[-1]

    yield make
    for row in rows:
        if not row.bound._is_closed:
            row.bound.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Masks that may be made behind drafts: a copy of a matcher takes one of these for each."""
    passes, copied = threading.Semaphore(0), SchemaMatcher.copy

    def copy(self: Any) -> Any:
        other = copied(self)

        def fill(mask: np.ndarray) -> bool:
            assert passes.acquire(timeout=30)
            return SchemaMatcher.fill(other, mask)

        other.fill = fill
        return other

    monkeypatch.setattr(SchemaMatcher, "copy", copy)
    return passes


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is None and b is None or a is not None and b is not None and np.array_equal(a, b)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_masks_ahead_are_those_of_a_fresh_matcher(
    a_row: Callable[..., Row], kind: int, seed: int
) -> None:
    """Wherever the row's tokens leave the drafts, and whichever of these may not come."""
    row, choose = a_row(KINDS[kind]), np.random.default_rng(seed)
    for turn in range(10):
        assert same(row.mask(), row.fresh())
        drafts = row.path(choose, int(choose.integers(1, 7)))
        if not drafts:
            break
        right, stray = int(choose.integers(len(drafts) + 1)), int(choose.integers(9))
        if stray < len(drafts):
            drafts[stray], right = int(choose.integers(row.vocabulary.model.n_vocab)), stray
        number = row.draft(drafts)
        if turn % 2 and right:
            assert same(row.behind(number, right), row.fresh(*drafts[:right]))
        for i, token in enumerate(drafts[:right]):
            row.say(token)
            assert same(row.round(number, i + 1), row.fresh())
        row.say(*row.path(choose, 1))


def test_they_are_there_before_a_token_is_known(a_row: Callable[..., Row]) -> None:
    row = a_row(WORDS)
    row.mask()
    drafts = row.tokens("red, green, blue, red, red, red, green, ")[: MOST_EACH - 1]
    for _ in range(2):
        number = row.draft(drafts)
        for i in range(1, len(drafts) + 1):
            assert same(row.behind(number, i), row.fresh(*drafts[:i]))
        assert row.samplers.whole[SLOT, p.MASK_AT] == row.n_tokens
        row.say(*drafts)
        assert same(row.mask(), row.fresh())
    assert len(row.bound._ahead.masks) == len(drafts)


def test_nothing_comes_behind_a_draft_that_is_forbidden(a_row: Callable[..., Row]) -> None:
    row = a_row(WORDS)
    row.mask()
    begin, wrong = row.tokens("red, green, "), row.tokens("yellow")
    number = row.draft([*begin, *wrong, *begin])
    row.behind(number, len(begin))
    row.say(*begin)
    assert same(row.mask(), row.fresh())
    assert row.made(number) == len(begin) and not row.bound.error
    number = row.draft(wrong)
    row.say(row.tokens("blue")[0])
    assert same(row.mask(), row.fresh()) and row.made(number) == 0


def test_the_form_may_end_amid_the_drafts(a_row: Callable[..., Row]) -> None:
    """The row may go another way all the same."""
    row = a_row(m.Constraint(m.REGEX, "abc(def)?"))
    begin, more = row.tokens("abc"), row.tokens("def")
    row.mask()
    end = int(row.vocabulary.ends[0])
    for drafts in ([*begin, end, *begin], [*begin, *more, end, end], [end, *begin]):
        number, n = row.draft(drafts), drafts.index(end)
        for i in range(n):
            assert same(row.behind(number, i + 1), row.fresh(*drafts[: i + 1]))
        if n:
            mask = row.behind(number, n)
            assert mask is not None and row.vocabulary.may_end(mask)
        assert not row.vocabulary.may_end(row.bound._mask)
    for token in begin + more:
        row.say(token)
        assert same(row.mask(), row.fresh())
    assert not row.bound.error


def test_a_token_that_comes_again_and_again(a_row: Callable[..., Row]) -> None:
    """Each time with the mask of its place."""
    row = a_row(m.Constraint(m.REGEX, "a{5}b"))
    row.mask()
    drafts = row.tokens("a")[:1] * 5
    row.behind(row.draft(drafts), 5)
    for token in drafts:
        row.say(token)
        assert same(row.mask(), row.fresh())


def test_thoughts_that_are_drafted_have_not_begun(a_row: Callable[..., Row]) -> None:
    row = a_row(m.Constraint(LIST.kind, LIST.text, thoughts=THOUGHTS))
    row.mask()
    drafts = row.tokens("<think>so</think>[1")
    row.behind(row.draft(drafts), len(drafts))
    for token in drafts:
        row.say(token)
        assert same(row.mask(), row.fresh())
    assert not row.bound.error


def test_a_row_without_a_token_may_end_where_the_mask_ahead_says_so(
    a_row: Callable[..., Row],
) -> None:
    """It was sampled with that, and not with the newest mask of the thread."""
    row = a_row(m.Constraint(m.REGEX, "abc"))
    row.mask()
    begin, whole = row.tokens("abc"), row.samplers.whole[SLOT]
    whole[p.MASK] = whole[p.NEXT_MASK]
    assert not row.bound.may_end()
    row.behind(row.draft(begin), len(begin))
    for i in range(len(begin)):
        whole[p.MASK] = row.ahead.masks[SLOT, i]
        assert row.bound.may_end() == (i == len(begin) - 1)


def test_it_stops_where_the_row_has_gone_another_way(
    a_row: Callable[..., Row], gate: threading.Semaphore
) -> None:
    row = a_row(WORDS)
    row.mask()
    drafts = row.tokens("red, red, red, red, ")
    number = row.draft(drafts)
    gate.release()
    row.behind(number, 1)
    row.say(*row.tokens("blue"))
    for _ in drafts:
        gate.release()
    assert same(row.mask(), row.fresh())
    assert row.made(number) <= 2 < len(drafts) - 1  # it made one meanwhile


def test_newer_drafts_end_those_before(
    a_row: Callable[..., Row], gate: threading.Semaphore
) -> None:
    """As of a tick that was given up, and is repeated with others."""
    row = a_row(WORDS)
    row.mask()
    old = row.draft(row.tokens("red, red, red, "))
    gate.release()
    row.behind(old, 1)
    drafts = row.tokens("green, blue, ")
    number = row.draft(drafts)
    for _ in range(1 + len(drafts)):
        gate.release()
    for i in range(1, len(drafts) + 1):
        assert same(row.behind(number, i), row.fresh(*drafts[:i]))


def test_drafts_for_another_number_of_tokens_are_left_alone(a_row: Callable[..., Row]) -> None:
    """Though these fit in everywhere."""
    row = a_row(m.Constraint(m.REGEX, "a{90}b"))
    row.mask()
    drafts = row.tokens("a")[:1] * 6
    for i, other in enumerate((-1, 9, 1)):
        row.ahead.number[SLOT] += i == 2  # the last are being written
        row.draft(drafts, at=row.n_tokens + other)
        for _ in range(2):  # once the second has its mask, the drafts have been looked at
            row.say(drafts[0])
            assert same(row.mask(), row.fresh())
        assert not row.ahead.made.any() and not row.bound._ahead.masks


def test_a_row_is_closed_while_they_are_made(
    a_row: Callable[..., Row], gate: threading.Semaphore
) -> None:
    """What belongs to the next row of the slot is not written."""
    row = a_row(WORDS)
    row.mask()
    number = row.draft(row.tokens("red, red, red, "))
    gate.release()
    row.behind(number, 1)
    address, thread = int(row.ahead.masks[SLOT, 0]), row.thread
    row.bound.close()
    for _ in range(9):
        gate.release()
    thread.join(30)
    assert not thread.is_alive() and row.made(number) == 1
    assert row.ahead.masks[SLOT].tolist() == [address] + [0] * (MOST_EACH - 1)


@pytest.mark.parametrize("passes", [1, 9])
def test_tokens_move_down_while_they_are_made(
    a_row: Callable[..., Row], gate: threading.Semaphore, passes: int
) -> None:
    """The thread may have seen none of the tick's tokens yet."""
    row = a_row(WORDS)
    first = row.tokens("red, green, blue, ")
    row.say(*first)
    row.mask()
    drafts, kept, dropped = row.tokens("red, red, "), N_PROMPT, len(first) + 1
    number = row.draft(drafts)
    for _ in range(passes):
        gate.release()
    row.behind(number, 1)
    row.say(*drafts[:3])
    n, tokens = row.n_tokens, row.table.tokens[SLOT]
    with row.bound.moving(dropped):
        tokens[kept : n - dropped] = tokens[kept + dropped : n].copy()
        row.table.n_tokens[SLOT] = n - dropped
    for _ in range(9):
        gate.release()
    assert same(row.mask(), row.fresh())
    row.draft(drafts[3:])
    row.say(*drafts[3:])
    assert same(row.mask(), row.fresh())


def test_a_grammar_is_followed_as_far_as_nothing_is_bound(a_row: Callable[..., Row]) -> None:
    """It has a process of its own, which cannot be copied."""
    row = a_row(m.Constraint(m.GRAMMAR, GRAMMAR.text, triggers=("call",)))
    row.mask()
    text = row.tokens("what to call ab")
    number, n = row.draft(text), len(row.tokens("what to"))
    assert row.behind(number, n) is None
    row.say(*text)
    assert same(row.mask(), row.fresh())
    assert n <= row.made(number) < len(text) and not row.ahead.masks.any()
    row.draft(row.tokens("abab"))
    row.say(*row.tokens("abcd"))
    assert same(row.mask(), row.fresh()) and not row.bound.error


def test_a_mask_is_for_the_drafts_that_it_was_made_behind() -> None:
    """Of the tick that is under way, and for no more of them than are verified."""
    ahead = Ahead.allocate(2, MOST_EACH)
    there = _is_ahead.py_func
    ahead.number[SLOT] = 6
    for number, made, right, expected in (
        (6, 3, 3, True), (6, 3, 1, True), (6, 3, 4, False), (6, 0, 1, False), (6, 3, 0, False),
        (4, 3, 1, False), (8, 3, 1, False), (0, 0, 0, False),
    ):  # fmt: skip
        ahead.made[SLOT] = (number << MADE_BITS) + made
        assert there(SLOT, right, ahead) == expected
    assert MOST_EACH < 1 << MADE_BITS
