"""Numbers that stand in a call make no code of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numba.core.dispatcher import Dispatcher

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
