"""Compiled functions called directly: the same answers, and only where there is one to call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from umaserve.jit.direct import Direct


class Pair(NamedTuple):
    values: np.ndarray
    scale: float


def _total(most: int, pair: Pair) -> tuple[int, float]:
    pair.values[0] += 1.0
    return most + 1, pair.scale * pair.values.sum()


def test_the_same_as_calling_it() -> None:
    compiled = njit(_total)
    direct = Direct(compiled)
    pair, other = Pair(np.arange(4.0), 2.0), Pair(np.arange(4.0), 2.0)
    for most in range(5):
        assert direct(most, pair) == _total(most, other)
    (only,) = compiled.overloads.values()
    assert direct._call is only.entry_point  # past the dispatcher


def test_errors_come_through() -> None:
    @njit
    def fails(n: Any) -> Any:
        if n > 1:
            raise ValueError("too many")
        return n

    direct = Direct(fails)
    assert direct(1) == direct(0) + 1
    for _ in range(2):
        try:
            direct(2)
        except ValueError as error:
            assert str(error) == "too many"
        else:
            raise AssertionError("nothing was raised")


def test_with_several_versions_numba_chooses() -> None:
    compiled = njit(_total)
    compiled(1, Pair(np.arange(4, dtype=np.float32), 1.0))
    direct, pair, other = Direct(compiled), Pair(np.arange(4.0), 2.0), Pair(np.arange(4.0), 2.0)
    for most in range(3):
        assert direct(most, pair) == _total(most, other)
    assert len(compiled.overloads) == 2


def test_a_function_that_is_not_compiled() -> None:
    direct, pair = Direct(_total), Pair(np.arange(4.0), 2.0)
    assert [direct(most, pair)[0] for most in range(3)] == [1, 2, 3]
