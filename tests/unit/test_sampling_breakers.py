"""From a DRY breaker's string to the token sequences that break."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from umaserve.sampling import breakers
from umaserve.wire.messages import Sampling


def words_of(words, others=None):
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int32)
    return breakers.Words(offsets, np.frombuffer(b"".join(words), np.uint8), others)


def test_heads_and_tails_of_a_breaker():
    words = words_of([b"..x", b"xy", b"yz!", b"q", b"-xyz-", b"xx", b""], {6: b"<xyz>"})
    heads = breakers.find_heads([b"xyz", b""], words, list)
    # a word may end in the breaker's beginning; the rest must follow it
    assert heads == {0: [(121, 122)], 1: [(122,)], 4: [()], 5: [(121, 122)], 6: [()]}
    packed = breakers.pack(heads, 7)
    assert packed[0] == 7 and packed[3] == packed[4] == 0
    assert packed[packed[1 + 0] :][:4].tolist() == [1, 2, 121, 122]
    assert packed[packed[1 + 4] :][:2].tolist() == [1, 0]
    assert packed[1 + 4] == packed[1 + 6]


def test_an_empty_list_packs_to_nothing():
    assert breakers.pack(breakers.find_heads([], words_of([b"a"]), list), 1).tolist() == [0]


texts = st.binary(max_size=6).map(lambda b: bytes(97 + c % 3 for c in b))


@given(st.lists(texts, min_size=1, max_size=30), st.lists(texts, max_size=4))
@example([b"aaa"], [b"aaaaa"])  # longer than all texts together
@settings(max_examples=200)
def test_heads_are_those_of_a_plain_search(words, strings):
    expected = {}
    for text in filter(None, strings):
        for token, word in enumerate(words):
            if text in word:
                expected.setdefault(token, set()).add(())
            else:
                for length in range(1, len(text)):
                    if word.endswith(text[:length]):
                        expected.setdefault(token, set()).add(tuple(text[length:]))
    heads = breakers.find_heads(strings, words_of(words), list)
    assert {token: set(tails) for token, tails in heads.items()} == expected
    assert all(len(tails) == len(set(tails)) for tails in heads.values())
    assert all(tails == sorted(tails, key=len) for tails in heads.values())


def test_only_a_request_with_dry_asks_for_breakers():
    asked = []
    cache = breakers.BreakerCache(lambda: asked.append(1) or words_of([b":"]), list)
    assert cache.of(Sampling()) is None and not asked
    assert cache.of(Sampling(dry_multiplier=0.8, mirostat=2)) is None and not asked
    packed = cache.of(Sampling(dry_multiplier=0.8))
    assert packed is cache.of(Sampling(dry_multiplier=1.0)) and asked == [1]


def test_breakers_are_found_once_and_the_oldest_forgotten():
    words = words_of([b"a", b"b\n", b"\n", b"xa", b"x"])
    cache = breakers.BreakerCache(lambda: words, list, keep=2)
    first = cache.get(("\n",))
    assert cache.get(("\n",)) is first
    assert first[1:6].astype(bool).tolist() == [False, True, True, False, False]
    cache.get(("a",))
    cache.get(("b",))
    assert cache.get(("\n",)) is not first
