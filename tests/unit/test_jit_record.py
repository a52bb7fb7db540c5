"""Records: named numbers that Python and compiled code share."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numba import carray, cfunc, njit, types

from umaserve.jit.record import Record, address_of, ints


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


class Job(Record):
    done: int
    room: np.ndarray = ints(2, 3)


JOB = Job.dtype


@cfunc(types.void(types.voidptr))
def work(data):
    job = carray(data, 1, JOB)[0]
    job.room[1, 2] += job.room[0, 0]
    job.done = job.room.size


def test_a_callback_gets_a_record_and_its_arrays_by_one_address() -> None:
    job = Job.zeros()
    job.room[0, 0], job.room[1, 2] = 40, 2
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work.address)(address_of(job))
    assert job.room.tolist() == [[40, 0, 0], [0, 0, 42]] and job.done == 6
    assert Job.zeros().tolist()[0] == 0 and not Job.zeros().room.any()


def test_a_name_that_numpy_has_for_every_record_is_refused() -> None:
    """Python would read numpy's, compiled code the field."""
    with pytest.raises(TypeError, match="shape"):

        class Bad(Record):
            shape: int
