"""Positions of pictures: a line of embeddings, or a grid that takes fewer positions than cells."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.cache.next_turn import Ended, NextTurns
from umaserve.engine.prefixes.saving import beside_pictures
from umaserve.engine.seats.pictures import Pictures, Placed, positions_of
from umaserve.eyes.answers import Answer, RunOf
from umaserve.eyes.seen import tokens_of
from umaserve.wire import messages as m
from umaserve.wire.states import NOT_FED, RUNNING


def run(rows: int, columns: int = 0) -> m.Run:
    of = RunOf(rows=rows, columns=columns)
    return m.Run("", 0, rows, of.positions, columns, False)


def test_a_line_has_a_position_for_each_embedding() -> None:
    assert positions_of(run(6), 100, 2, 3, 1).tolist() == [102, 103, 104]
    assert positions_of(run(6), 100, 2, 2, 4).tolist() == [102, 103] * 4, "of M-RoPE all alike"


def test_a_grid_has_time_line_and_column() -> None:
    """As ``mtmd_image_tokens_get_decoder_pos``, with three columns and two lines from 10 on."""
    assert positions_of(run(6, 3), 10, 0, 6, 4).reshape(4, 6).tolist() == [
        [10] * 6, [10, 10, 10, 11, 11, 11], [10, 11, 12, 10, 11, 12], [0] * 6,
    ]  # fmt: skip
    assert positions_of(run(6, 3), 10, 2, 2, 4).reshape(4, 2).tolist() == [
        [10, 10], [10, 11], [12, 10], [0, 0],
    ]  # fmt: skip


@given(columns=st.integers(1, 40), lines=st.integers(1, 40))
def test_a_grid_takes_as_many_positions_as_its_longer_side(columns: int, lines: int) -> None:
    picture = run(columns * lines, columns)
    assert picture.positions == max(columns, lines)
    assert m.Picture(0, [], (picture, run(7))).more_cells == columns * lines - max(columns, lines)
    told = Answer(runs=(RunOf(tokens=(1,)), RunOf(rows=columns * lines, columns=columns)))
    assert len(tokens_of(told, b"x")) == 1 + picture.positions
    places = positions_of(picture, 5, 0, picture.rows, 4).reshape(4, -1)[:3]
    assert places.min() == 5 and places.max() == 4 + picture.positions


@given(
    parts=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=6),
    places=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_a_piece_never_ends_in_a_picture(
    parts: list[tuple[bool, int]], places: tuple[int, int]
) -> None:
    tokens = np.array([-9 if seen else 7 for seen, n in parts for _ in range(n)], np.int32)
    p0, p1 = sorted(min(place, tokens.size) for place in places)
    end = beside_pictures(tokens, p0, p1)
    assert p0 <= end <= tokens.size
    assert end == p0 or tokens[end - 1] >= 0
    if end > p1:
        assert (tokens[p0:p1] < 0).all(), "it is longer only where it had nothing else"
    if p1 > p0 and tokens[p1 - 1] >= 0:
        assert end == p1


def test_held_cells_are_those_of_pictures_too() -> None:
    turns = NextTurns()
    turns.hold(3, Ended("d", 1, np.arange(80, dtype=np.int32), 70, 0.0, more_cells=500))
    assert turns.cells == 580 and turns.size(3) == 80
    turns.drop(3)
    assert turns.cells == 0


@pytest.mark.parametrize(("streams", "rests_s", "decodes"), [
    (True, 60.0, False), (True, 0.0, True), (False, 60.0, True),
])  # fmt: skip
def test_streams_come_first_for_a_while_and_the_row_still_has_work(
    streams: bool, rests_s: float, decodes: bool
) -> None:
    """The loop takes a pass without work for a fault where a request waits."""
    decoded: list[int] = []
    table = SimpleNamespace(
        state=np.array([RUNNING]), n_past=np.array([3]), lane=np.array([0]), arrival=np.array([1])
    )
    pictures = object.__new__(Pictures)
    aside = np.zeros(1, np.int32)
    pictures._table, pictures._placed = table, {0: [Placed(3, 9, run(6))]}
    pictures._aside, pictures._turns = aside, SimpleNamespace(is_paused=lambda slot: False)
    pictures._seats = SimpleNamespace(somebody_decodes=lambda is_paused: streams)
    pictures._rests_until_ns = time.monotonic_ns() + int(1e9 * rests_s)
    pictures._decode = lambda slot, placed: decoded.append(slot)
    assert pictures.step() is True
    assert bool(decoded) == decodes and aside[0] == NOT_FED
    table.n_past[0] = 9
    assert pictures.step() is False and aside[0] == -1
