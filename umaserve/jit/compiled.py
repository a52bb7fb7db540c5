"""numba's ``njit``, which compiles a function once for all numbers that are written in its calls.

numba has a type of its own for each number that stands in a call.  So `at(cost, 0, 1, past)` is not
compiled as `at(cost, mode, rows, past)` is, though all are whole numbers.  Some functions of the
scheduler would be compiled up to twenty times, and the whole engine would take a third longer.
LLVM puts such numbers in where it pays.

numba's cache is read with care: an index names classes of whoever called a function, and a file may
be cut short.  What cannot be read counts as not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from numba.core import config, types
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher


def njit(*arguments: Any, **options: Any) -> Any:
    """A decorator, with numba's own arguments; see the module."""
    made = numba.njit(*arguments, **options)
    if isinstance(made, Dispatcher):
        return _without_literals(made)
    if arguments and callable(arguments[0]):
        return made  # the compiler is switched off
    return lambda function: _without_literals(made(function))


def intrinsic(plain: Callable[..., Any]) -> Any:
    """numba's decorator, for what Python calls as `plain` where the compiler is switched off."""
    is_off = config.DISABLE_JIT  # type: ignore[attr-defined]
    return (lambda _: plain) if is_off else numba.extending.intrinsic


def _load_index(self: Any) -> Any:
    try:
        return _LOAD_INDEX(self)
    except Exception:  # whatever unpickling raises
        return {}


def _load_data(self: Any, name: str) -> Any:
    try:
        return _LOAD_DATA(self, name)
    except Exception as error:
        raise OSError(f"{name} cannot be read") from error  # which numba takes for a miss


# of numba's own class, since callbacks (``cfunc``) are compiled where they are decorated
_LOAD_INDEX, _LOAD_DATA = IndexDataCacheFile._load_index, IndexDataCacheFile._load_data
IndexDataCacheFile._load_index = _load_index  # type: ignore[method-assign]
IndexDataCacheFile._load_data = _load_data  # type: ignore[method-assign]


def _without_literals(made: Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(made, Dispatcher):
        return made
    choose = made.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        named = {name: types.unliteral(kind) for name, kind in kws.items()}
        return choose(tuple(map(types.unliteral, args)), named)

    made.get_call_template = get_call_template  # type: ignore[method-assign]
    return made
