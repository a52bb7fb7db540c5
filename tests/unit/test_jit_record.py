"""Records: named numbers that Python and compiled code share."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from umaserve.jit.record import Record


class Sums(Record):
    whole: int
    part: float


@njit
def add(record, several, at):
    record.whole += 2
    several[at] = record


def test_both_sides_read_and_write_the_same_fields() -> None:
    record, several = Sums.zeros(), Sums.several(2)
    record.whole, record.part = 40, 0.5
    add(record, several, 1)
    assert record.whole == 42 and record.tolist() == (42, 0.5)
    assert several[0].whole == 0 and several[1].part == 0.5
    assert isinstance(record.whole, np.int64) and isinstance(record.part, np.float64)


def test_a_name_that_numpy_has_for_every_record_is_refused() -> None:
    """Python would read numpy's, compiled code the field."""
    with pytest.raises(TypeError, match="shape"):

        class Bad(Record):
            shape: int
