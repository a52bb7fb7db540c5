"""numba's ``njit``, which compiles a function once for all numbers that are written in its calls.

numba has a type of its own for each number that stands in a call.  So `at(cost, 0, 1, past)` is not
compiled as `at(cost, mode, rows, past)` is, though all are whole numbers.  Some functions of the
scheduler would be compiled up to twenty times, and the whole engine would take a third longer.
LLVM puts such numbers in where it pays.

Nor are references counted (``_nrt``): what Python lends outlives the call, and nothing is
allocated.  With counts, each record that is read out of a tuple is counted, which takes an eighth
of the time.  A function that allocates, or makes an array of an address, needs them:
``njit(..., _nrt=True)``.  numba says so where they are missing.  A function without them returns no
array, which a caller with counts would take for its own.  C calls no function but callbacks
(``cfunc``), so there are no wrappers for C either.

numba's cache is read with care: an index names classes of whoever called a function, and a file may
be cut short.  What cannot be read counts as not compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from llvmlite import ir
from numba.core import config, types
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError

# For functions that only compiled code calls.  They get no wrapper for Python: it takes most of the
# time of compiling a small function with many arrays.
INNER: dict[str, Any] = {"nogil": True, "cache": True, "no_cpython_wrapper": True}

# of a phase of one larger function, its only caller: numba puts both together before it looks at
# types.  LLVM would optimise what a phase calls once for the phase and once more for its caller.
PHASE: dict[str, Any] = {"nogil": True, "cache": True, "inline": "always"}


def njit(*arguments: Any, **options: Any) -> Any:
    """A decorator, with numba's own arguments; see the module."""
    made = numba.njit(*arguments, **{"_nrt": False, "no_cfunc_wrapper": True, **options})
    if isinstance(made, Dispatcher):
        return _without_literals(made)
    if arguments and callable(arguments[0]):
        return made  # the compiler is switched off
    return lambda function: _without_literals(made(function))


def intrinsic(plain: Callable[..., Any]) -> Any:
    """numba's decorator, for what Python calls as `plain` where the compiler is switched off."""
    is_off = config.DISABLE_JIT  # type: ignore[attr-defined]
    return (lambda _: plain) if is_off else numba.extending.intrinsic


@intrinsic(lambda address: ctypes.c_void_p(int(address)))
def pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """``void*`` from an integer address, for ``carray``."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.PointerType(ir.IntType(8)))

    return types.voidptr(types.int64), codegen


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
    counts = made.targetoptions["_nrt"]

    def get_call_template(args: Any, kws: Any) -> Any:
        named = {name: types.unliteral(kind) for name, kind in kws.items()}
        chosen: Any = choose(tuple(map(types.unliteral, args)), named)
        if not counts and any(_has_array(case.return_type) for case in chosen[0].cases):
            name = made.py_func.__name__
            raise TypingError(f"{name} returns an array, and counts no references")
        return chosen

    made.get_call_template = get_call_template  # type: ignore[method-assign]
    return made


def _has_array(kind: Any) -> bool:
    return isinstance(kind, types.Array) or any(map(_has_array, getattr(kind, "types", ())))
