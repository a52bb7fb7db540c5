"""numba's ``njit``, which compiles a function once for all numbers that are written in its calls.

numba has a type of its own for each number that stands in a call.  So `at(cost, 0, 1, past)` is not
compiled as `at(cost, mode, rows, past)` is, though all are whole numbers.  Some functions of the
scheduler would be compiled up to twenty times, and the whole engine would take a third longer.
LLVM puts such numbers in where it pays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.core.dispatcher import Dispatcher


def njit(*arguments: Any, **options: Any) -> Any:
    """A decorator, with numba's own arguments; see the module."""
    made = numba.njit(*arguments, **options)
    if isinstance(made, Dispatcher):
        return _without_literals(made)
    if arguments and callable(arguments[0]):
        return made  # the compiler is switched off
    return lambda function: _without_literals(made(function))


def _without_literals(made: Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(made, Dispatcher):
        return made
    choose = made.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        named = {name: types.unliteral(kind) for name, kind in kws.items()}
        return choose(tuple(map(types.unliteral, args)), named)

    made.get_call_template = get_call_template  # type: ignore[method-assign]
    return made
