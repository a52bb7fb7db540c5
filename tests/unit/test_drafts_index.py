"""The index of a text, held against a search through all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.drafts.index import (
    CATCH_UP,
    CHAINED,
    LONGEST,
    LOOKS,
    Index,
    begin,
    copy_on,
    find,
    keep_up,
)

TEXT = st.lists(st.integers(0, 3), max_size=120)


def searched(tokens: list[int], fewest: int = 1) -> tuple[int, int]:
    """The newest of the longest places, by looking at all; as `find`."""
    n, best = len(tokens), (0, 0)
    for place in range(n - 2, fewest - 2, -1):
        same = 0
        while (
            same < min(LONGEST, place + 1) and tokens[place - same] == tokens[n - 1 - same]
        ):
            same += 1
        if same >= fewest and same > best[1]:
            best = place + 1, same
    return best


def found(index: Index, row: int, tokens: list[int], positions: int = 200) -> tuple[int, int]:
    room = np.full(positions, -1, np.int32)
    room[: len(tokens)] = tokens
    assert keep_up(index, row, room, len(tokens))
    return tuple(map(int, find(index, row, room, len(tokens))))  # type: ignore[return-value]


def looks_reach(tokens: list[int], place: int) -> bool:
    """Whether a place is among those of its hash that are looked at: here, of its last tokens."""
    last, n = tokens[-CHAINED:], len(tokens)
    newer = [
        at for at in range(place, n - 1) if tokens[at - CHAINED + 1 : at + 1] == last
    ]  # fmt: skip
    return len(newer) <= LOOKS


@settings(max_examples=300)
@given(TEXT, st.integers(1, 40))
def test_what_is_found_is_what_a_search_finds(text: list[int], step: int) -> None:
    """Whether a text came at once or grew; another row's text changes nothing."""
    index = Index.allocate(2, 200)
    begin(index, 0, 5, 0)
    begin(index, 1, 6, 0)
    found(index, 1, [1, 2, 3] * 9)
    for n in range(step, len(text) + 1, step):
        part = text[:n]
        expected = searched(part)
        got = found(index, 0, part)
        if expected[1] >= CHAINED and not looks_reach(part, expected[0] - 1):
            assert got[1] <= expected[1]
        else:
            assert got == expected


def test_a_place_is_found_behind_which_the_text_goes_on() -> None:
    index = Index.allocate(1, 200)
    begin(index, 0, 1, 0)
    text = [1, 2, 3, 4, 5, 9, 9, 2, 3, 4]
    assert found(index, 0, text) == (4, 3)


def test_where_no_more_agree_two_tokens_or_one_are_enough() -> None:
    index = Index.allocate(1, 200)
    begin(index, 0, 1, 0)
    text = [5, 1, 2, 6, 2, 7]
    assert found(index, 0, [*text, 2]) == (5, 1)
    assert found(index, 0, [*text, 2, 9, 1, 2]) == (3, 2)
    assert found(index, 0, [*text, 2, 9, 1, 2, 8]) == (0, 0)


def test_of_places_that_agree_alike_the_newest_is_taken() -> None:
    index = Index.allocate(1, 200)
    begin(index, 0, 1, 0)
    assert found(index, 0, [0, 1, 2, 3, 0, 1, 2, 2, 0, 1, 2]) == (7, 3)


def test_another_text_in_a_row_knows_nothing_of_the_one_before() -> None:
    index = Index.allocate(1, 200)
    assert begin(index, 0, 1, 0) and not begin(index, 0, 1, 0)
    assert found(index, 0, [1, 2, 3, 4, 1, 2, 3]) == (3, 3)
    assert begin(index, 0, 2, 0)
    assert found(index, 0, [7, 8, 9, 1, 2, 3]) == (0, 0)
    assert found(index, 0, [7, 8, 9, 1, 2, 3, 8]) == (2, 1)
    # one that has lost tokens is another text too
    assert begin(index, 0, 2, 1)


def test_a_long_text_is_entered_in_parts() -> None:
    tokens = np.arange(2 * CATCH_UP + 10, dtype=np.int32)
    tokens[-3:] = [5, 6, 7]
    index = Index.allocate(1, tokens.size)
    begin(index, 0, 1, 0)
    entered = [keep_up(index, 0, tokens, tokens.size) for _ in range(3)]
    assert entered == [False, False, True]
    assert tuple(find(index, 0, tokens, tokens.size)) == (8, 3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.data(), st.integers(0, 15))
def test_a_copy_goes_on_with_what_it_has_copied(
    text: list[int], data: st.DataObject, most: int
) -> None:
    place = data.draw(st.integers(0, len(text) - 1))
    tokens, out = np.array(text, np.int32), np.zeros(15, np.int32)
    copy_on(tokens, len(text), place, out, most)
    whole = list(text)
    for i in range(most):
        whole.append(whole[place + i])
    assert out[:most].tolist() == whole[len(text) :]
