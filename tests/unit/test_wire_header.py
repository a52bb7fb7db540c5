"""Words with names: the same memory for Python, for compiled code and for another process."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numba import njit

from umaserve.wire.header import (
    ABORT_AT,
    HEADER_BYTES,
    TICK_ROW,
    AbortWords,
    Header,
    TickRow,
    Words,
)


class Three(Words):
    first: int
    second: int
    third: int


@njit
def add(record) -> None:
    record.second += 2


def test_every_word_has_a_place_of_its_own_in_all_views() -> None:
    memory = np.arange(8, dtype=np.int64)
    words, again = Three(memory, 16), Three(memory, 16)
    assert (words.first, words.second, words.third) == (2, 3, 4)
    assert type(words.second) is int
    words.second = 40
    add(words.record)
    assert memory.tolist() == [0, 1, 2, 42, 4, 5, 6, 7] and again.second == 42
    assert ctypes.c_int64.from_address(words.address_of("second")).value == 42
    words.clear()
    assert memory.tolist() == [0, 1, 0, 0, 0, 5, 6, 7]


def test_what_is_no_whole_number_is_refused() -> None:
    words = Three.fresh()
    with pytest.raises(TypeError):
        words.first = 0.5  # type: ignore[assignment]
    assert words.first == 0


def test_header_and_abort_words_lie_behind_each_other_and_aligned() -> None:
    assert Header.dtype.itemsize <= ABORT_AT and ABORT_AT % 64 == 0
    assert ABORT_AT + AbortWords.dtype.itemsize <= HEADER_BYTES
    for kind in (Header, AbortWords):
        assert all(offset % 8 == 0 for _, offset in kind.dtype.fields.values())  # type: ignore[union-attr]


def test_a_row_of_the_ring_is_a_tick_by_name() -> None:
    ring = np.zeros(2, TICK_ROW)
    ring["wall_ms"][1] = 1.5
    row = TickRow(*ring[1].item())
    assert row.wall_ms == 1.5 and sum(row) == 1.5
