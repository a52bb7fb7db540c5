"""What others of the same trust domain have said, and nobody else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.drafts.ring import (
    FEWEST_SHARED,
    MOST_OF_ONE,
    SIZE,
    Ring,
    copy_shared,
    find_shared,
    remember,
)
from umaserve.engine.drafting.records import domain_number

TEXTS = st.lists(
    st.tuples(st.integers(1, 2), st.lists(st.integers(0, 2), max_size=40)), max_size=8
)


def told(texts: list[tuple[int, list[int]]]) -> Ring:
    ring = Ring.allocate(True)
    for domain, text in texts:
        remember(ring, domain, np.array(text or [0], np.int32), 0, len(text))
    return ring


def after(ring: Ring, domain: int, end: list[int], most: int = 15) -> tuple[list[int], int]:
    """What followed the end of a text in others, and how many tokens agreed."""
    place, same = find_shared(ring, domain, np.array(end, np.int32), len(end))
    out = np.zeros(15, np.int32)
    return out[: copy_shared(ring, place, out, most) if same else 0].tolist(), int(same)


@settings(max_examples=300)
@given(TEXTS, st.integers(1, 2), st.lists(st.integers(0, 2), min_size=3, max_size=20))
def test_what_is_found_was_said_in_the_same_domain(
    texts: list[tuple[int, list[int]]], domain: int, end: list[int]
) -> None:
    follows, same = after(told(texts), domain, end)
    own = [text for whose, text in texts if whose == domain]
    ends = [
        (text[at : at + 15], agree)
        for text in own
        for at in range(FEWEST_SHARED, len(text))
        for agree in [_agree(text[:at], end)]
        if agree >= FEWEST_SHARED
    ]
    if same:
        assert (follows, same) in ends
        # places of a hash that is shared by many are not all looked at
        assert len(ends) > 20 or same == max(agree for _, agree in ends)
    else:
        assert not ends or len(ends) > 20


def _agree(before: list[int], end: list[int]) -> int:
    same = 0
    while same < min(24, len(before), len(end)) and before[-1 - same] == end[-1 - same]:
        same += 1
    return same


def test_a_copy_ends_where_the_text_does() -> None:
    ring = told([(1, [1, 2, 3, 4, 5, 6, 7]), (1, [8, 8, 8])])
    assert after(ring, 1, [1, 2, 3, 4, 5]) == ([6, 7], 5)
    assert after(ring, 1, [3, 4, 5, 6, 7]) == ([], 0)
    assert after(ring, 2, [1, 2, 3, 4, 5]) == ([], 0)


def test_old_texts_are_overwritten() -> None:
    ring = told([(1, [1, 2, 3, 4, 5, 6, 7])])
    filler = np.arange(100, 100 + MOST_OF_ONE + 50, dtype=np.int32)
    for _ in range(SIZE // MOST_OF_ONE - 1):
        remember(ring, 1, filler, 0, filler.size)
    assert after(ring, 1, [1, 2, 3, 4, 5])[1] == 5
    # of a long text, the end is kept
    assert after(ring, 1, filler[-20:-4].tolist())[0] == filler[-4:].tolist()
    assert after(ring, 1, filler[:10].tolist()) == ([], 0)
    remember(ring, 1, filler, 0, filler.size)
    assert after(ring, 1, [1, 2, 3, 4, 5]) == ([], 0)


def test_a_text_at_the_end_of_the_ring_does_not_go_on_as_an_old_one_of_others() -> None:
    """Its place is that of an older text that ended alike, and behind it lie others' tokens."""
    ring = told([(1, [1, 2, 3, 4, 5])])
    filler = np.full(MOST_OF_ONE, 7, np.int32)
    left = 2 * SIZE - int(ring.written.tokens)
    while left:
        n = min(left - 1, MOST_OF_ONE)
        remember(ring, 2, filler, 0, n)
        left -= n + 1
    remember(ring, 1, np.array([1, 2, 3, 4, 5], np.int32), 0, 5)
    assert ring.domain[int(ring.written.tokens) % SIZE] == 2
    assert after(ring, 1, [1, 2, 3, 4, 5]) == ([], 0)


def test_a_domain_has_a_number_of_its_own() -> None:
    numbers = {domain_number(name) for name in (None, "", "a", "b", "a\0own")}
    assert len(numbers) == 5 and domain_number(None) == 0
    assert domain_number("a") == domain_number("a")
