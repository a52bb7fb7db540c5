"""Compiled functions called without looking at the types of their arguments each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Direct:
    """Calls a numba function as if it were called by itself.

    numba finds out the types of all arguments with every call.  For the hundred arrays of
    ``run_ticks`` it takes longer than passing them on (45 us of 70 on a Xeon).  After its first
    call a `Direct` goes to the machine code at once.  So from then on arguments must be of the same
    types (dtypes, layouts): make a new `Direct` where they may change.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._call: Callable[..., Any] = self._first

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _first(self, *arguments: Any) -> Any:
        found = self._function(*arguments)
        compiled = getattr(self._function, "overloads", {})  # none where JIT is switched off
        self._call = self._function
        if len(compiled) == 1:
            (only,) = compiled.values()
            self._call = only.entry_point
        return found
