"""Lets the engine's modules be imported where the compiler is switched off (NUMBA_DISABLE_JIT=1).

numba compiles callbacks for C all the same, and fails, since what these call is not compiled.  The
policy and the samplers, which run without the compiler, need none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class _Callback:
    """What `numba.cfunc` makes, without an address that C could call."""

    address = 0

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function


def leave_out_callbacks() -> None:
    """Before the engine is imported; nothing where there is a compiler."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        import numba

        numba.cfunc = lambda *_, **__: _Callback
