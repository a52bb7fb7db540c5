"""Numbers that stand in a call make no code of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, TypingError

from umaserve.engine.start.compile import functions_to_compile
from umaserve.jit.compiled import njit

ROOT = Path(__file__).resolve().parents[2]


def test_one_specialisation_serves_numbers_and_variables() -> None:
    @njit
    def inner(values, i, times, swap):
        return values[i] * times if not swap else -values[i]

    @njit(nogil=True)
    def outer(values, i):
        a = inner(values, 0, 1, False) + inner(values, 1, i, True)
        return a + inner(values, i, 3, i > 5) + inner(values, i=0, times=2, swap=False)

    values = np.array([2.0, 30.0])
    assert outer(values, 1) == 2.0 - 30.0 + 90.0 + 4.0
    assert isinstance(inner, Dispatcher) and len(inner.signatures) == 1


def test_a_function_that_counts_no_references_hands_on_no_array() -> None:
    """Its caller would give back a reference that nobody has taken."""

    @njit
    def pair(values, i):
        return values, i

    @njit(_nrt=True)
    def takes(values):
        first, i = pair(values, 2)
        return first[i]

    with pytest.raises(TypingError, match="pair returns an array, and counts no references"):
        takes(np.arange(4.0))


def test_what_allocates_has_to_count() -> None:
    def copied(values):
        return values.copy().sum()

    values = np.arange(4.0)
    with pytest.raises(NumbaError, match="NRT required"):
        njit(copied)(values)
    assert njit(_nrt=True)(copied)(values) == 6.0


def test_a_loop_over_lent_arrays_leaves_their_references_as_they_were() -> None:
    @njit
    def inner(pair, i):
        return pair[0][i] + pair[1][i]

    @njit(_nrt=True)
    def outer(pair):
        total = 0.0
        for i in range(pair[0].size):
            total += inner(pair, i)
        return total

    lent = np.arange(3.0), np.ones(3)
    before = [sys.getrefcount(array) for array in lent]
    assert outer(lent) == 6.0 and inner(lent, 1) == 2.0
    assert [sys.getrefcount(array) for array in lent] == before


def test_without_the_compiler_a_function_is_itself() -> None:
    program = (
        "from umaserve.jit.compiled import njit\n"
        "@njit\ndef a(x): return x\n@njit(nogil=True)\ndef b(x): return a(x) + 1\n"
        "print(type(a).__name__, b(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.stdout == "function 2\n"


def test_the_functions_to_compile_are_counted() -> None:
    assert 150 < functions_to_compile() < 500
