"""The tree of kept texts against a list of them, over random texts, domains and sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from umaserve.cache.tree import PrefixTree

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=24)  # few ids: texts share beginnings
DOMAINS = st.sampled_from(["", "other"])


def saved(domain: str, tokens: list[int], p0: int, p1: int) -> np.ndarray:
    """What stands for libllama's bytes: they say what they are of."""
    text = repr((domain, tokens[p0:p1], p0)).encode()
    return np.frombuffer(text, np.uint8)


def put(tree: PrefixTree, domain: str, tokens: list[int], piece: int = 100) -> bool:
    """Keep a text as the engine does: what is not there yet, in pieces."""
    ids = np.array(tokens, np.int32)
    while True:
        parts = tree.match(domain, ids)
        p0 = parts[-1].end if parts else 0
        p1 = min(p0 + piece, len(tokens))
        if p0 == p1:
            return True
        if tree.add(domain, ids[:p1], p0, saved(domain, tokens, p0, p1), float(p1 - p0)) is None:
            return False


def known(tree: PrefixTree, domain: str, tokens: list[int]) -> int:
    parts = tree.match(domain, np.array(tokens, np.int32))
    return parts[-1].end if parts else 0


def shared(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Texts(RuleBasedStateMachine):
    """With room for all: the longest common beginning is found, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(1 << 30)
        self.kept: list[tuple[str, list[int]]] = []

    @rule(domain=DOMAINS, tokens=TEXTS, piece=st.integers(1, 9))
    def keep(self, domain: str, tokens: list[int], piece: int) -> None:
        assert put(self.tree, domain, tokens, piece)
        self.kept.append((domain, tokens))

    @rule(domain=DOMAINS, tokens=TEXTS)
    def ask(self, domain: str, tokens: list[int]) -> None:
        mine = [shared(tokens, other) for name, other in self.kept if name == domain]
        assert known(self.tree, domain, tokens) == max(mine, default=0)

    @rule(domain=DOMAINS, tokens=TEXTS)
    def restore(self, domain: str, tokens: list[int]) -> None:
        """The parts hold just these tokens of this domain, one behind the other."""
        at = 0
        for part in self.tree.match(domain, np.array(tokens, np.int32)):
            name, ids, p0 = eval(bytes(part.entry.data))
            assert (name, p0) == (domain, part.entry.p0) and p0 == at
            assert ids[: part.end - p0] == tokens[p0 : part.end]
            at = part.end

    @invariant()
    def is_whole(self) -> None:
        self.tree.check()


class Short(Texts):
    """With room for little: what is found was kept, and the bytes hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tree.most_bytes = 400

    @rule(domain=DOMAINS, tokens=TEXTS, piece=st.integers(1, 9))
    def keep(self, domain: str, tokens: list[int], piece: int) -> None:
        put(self.tree, domain, tokens, piece)
        self.kept.append((domain, tokens))

    @rule(domain=DOMAINS, tokens=TEXTS)
    def ask(self, domain: str, tokens: list[int]) -> None:
        mine = [shared(tokens, other) for name, other in self.kept if name == domain]
        assert known(self.tree, domain, tokens) <= max(mine, default=0)

    @rule(most=st.integers(0, 800))
    def change_size(self, most: int) -> None:
        self.tree.most_bytes = most
        self.tree.shrink()

    @invariant()
    def holds(self) -> None:
        assert self.tree.bytes_held <= self.tree.most_bytes


TestTexts = Texts.TestCase
TestShort = Short.TestCase
TestTexts.settings = TestShort.settings = settings(max_examples=60, stateful_step_count=40)


def test_what_was_used_lately_stays() -> None:
    tree = PrefixTree(1 << 30)
    texts = [[i, *range(10, 20)] for i in range(4)]
    for text in texts:
        assert put(tree, "", text)
    tree.use(tree.match("", np.array(texts[0], np.int32)))
    tree.most_bytes = tree.bytes_held - 1
    tree.shrink()
    assert known(tree, "", texts[0]) == 11
    assert [known(tree, "", text) for text in texts].count(11) == 3


def test_what_is_dear_to_compute_stays_longer_than_what_is_cheap() -> None:
    tree = PrefixTree(1 << 30)
    dear, cheap = np.arange(8, dtype=np.int32), np.arange(100, 108, dtype=np.int32)
    data = np.zeros(1000, np.uint8)
    assert tree.add("", dear, 0, data, 500.0) and tree.add("", cheap, 0, data, 1.0)
    tree.most_bytes = tree.bytes_held - 1
    tree.shrink()
    assert tree.match("", dear) and not tree.match("", cheap)


def test_a_long_text_loses_its_end_first() -> None:
    tree = PrefixTree(1 << 30)
    text = list(range(40))
    assert put(tree, "", text, 10)
    tree.most_bytes = tree.bytes_held // 2
    tree.shrink()
    assert 0 < known(tree, "", text) < 40 and known(tree, "", text) % 10 == 0


@given(TEXTS, TEXTS)
def test_a_text_is_nobodys_of_another_domain(first: list[int], second: list[int]) -> None:
    tree = PrefixTree(1 << 30)
    put(tree, "a", first)
    assert known(tree, "b", first) == known(tree, "b", second) == 0


def test_a_domain_whose_last_text_went_is_forgotten() -> None:
    tree = PrefixTree(1 << 30)
    put(tree, "a", [1, 2])
    put(tree, "b", [1, 2, 3])
    tree.most_bytes = 0
    tree.shrink()
    assert tree.domains() == [] and tree._roots == {} and tree.bytes_held == 0


def test_a_session_outlives_what_nobody_comes_back_for() -> None:
    """Its lease is bounded: it goes in the end, for others that are used all the time."""
    tree, size = PrefixTree(4000), np.zeros(200, np.uint8)

    def add(first: int, lease: float) -> None:
        assert tree.add("", np.array([first], np.int32), 0, size, 1.0, lease)

    add(1, 4.0)
    for at in range(2, 100):
        add(at, 1.0)
        if known(tree, "", [1]) == 0:
            break
    assert 2 * 4000 / 200 < at < 6 * 4000 / 200
    tree.check()


def test_background_work_rides_on_a_session_and_goes_first() -> None:
    tree, size = PrefixTree(1000), np.zeros(200, np.uint8)
    chat = np.array([1, 2], np.int32)
    assert tree.add("", chat[:1], 0, size, 1.0, 4.0)
    worth = tree.match("", chat)[0].entry.worth
    assert tree.add("", chat, 1, size, 1.0, 0.25)
    assert tree.match("", chat)[0].entry.worth == worth, "what it rides on is worth no less"
    for other in (3, 4, 5):
        assert tree.add("", np.array([other], np.int32), 0, size, 0.5)
    assert known(tree, "", [1, 2]) == 1, "its own end went, and nothing else"
    assert [known(tree, "", [other]) for other in (3, 4, 5)] == [1, 1, 1]


def test_one_long_text_goes_before_the_ends_of_all() -> None:
    """What is worth least goes, though only the end of a text is a leaf."""
    tree, size = PrefixTree(1700), np.zeros(196, np.uint8)
    old = np.arange(100, 104, dtype=np.int32)
    for end in range(1, 5):
        assert tree.add("", old[:end], end - 1, size, 1.0)
    for first in (1, 2, 3, 4):
        assert tree.add("", np.array([first], np.int32), 0, size, 2.0)
    assert tree.add("", np.array([5], np.int32), 0, np.zeros(700, np.uint8), 9.0)
    assert [known(tree, "", [first]) for first in (1, 2, 3, 4, 5)] == [1] * 5
    assert known(tree, "", old.tolist()) == 0
