"""Engines, and daemons with real engines, forked from a process that has loaded compiled code.

    python -m tests.support.patches.warm_engine --forks FD

That process loads neither libllama nor a model.  A fork copies one thread alone, and GNU OpenMP
does not survive it: where a model's weights are converted by threads while they are loaded
(processors with AMX), an engine forked afterwards would wait for these threads for ever.
`tests.support.forks.answer` refuses to fork a process of several threads.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from tests.support.forks import FRONT, answer
from tests.support.patches import children
from tests.support.patches.engine import apply, keep_cache_in_use
from umaserve.engine import __main__ as engine_main
from umaserve.jit import cache as jit_cache

# what the engine's program imports once it has read its first message
MODULES = (
    "numpy.ma", "umaserve.engine.loop.engine", "umaserve.engine.loop.encoder",
    "umaserve.engine.model.boot", "umaserve.engine.start.pretouch",
    "umaserve.engine.start.warmup",
)  # fmt: skip


def preload() -> None:
    """Import all that an engine, a front and a gateway import, and load compiled code."""
    jit_cache.use_jit_cache()
    for name in (*MODULES, FRONT):
        importlib.import_module(name)
    children.preload()
    for function in compiled_functions():
        _load(function)
    keep_cache_in_use()
    gc.collect()
    gc.freeze()  # collections in the forks look at what is theirs


def compiled_functions() -> Iterator[Any]:
    """Functions of the package that numba compiles and that Python may call."""
    from numba.core.dispatcher import Dispatcher

    seen = set[int]()
    for name, module in list(sys.modules.items()):
        if name.startswith("umaserve."):
            for value in list(vars(module).values()):
                inner = isinstance(value, Dispatcher) and value.targetoptions.get(
                    "no_cpython_wrapper"
                )
                if isinstance(value, Dispatcher) and not inner and id(value) not in seen:
                    seen.add(id(value))
                    yield value


def _load(function: Any) -> None:
    """Load each version of a function that the cache has for this processor; compile none."""
    file = getattr(function._cache, "_cache_file", None)
    if file is None or not function._can_compile:  # it is loaded where it is decorated
        return
    key = function._cache._index_key((), function.targetctx.codegen())
    for signature, *rest in file._load_index():
        if tuple(rest) == key[1:]:
            function.compile(signature)


def run(what: Any, *fds: int) -> None:
    """Run an engine, patched where a patch is described, or a daemon of settings; then exit."""
    if isinstance(what, list):
        front.run_forked(what)
    if what["patch"]:
        apply(what["patch"])
    names = ("control", "wake", "table", "pieces")
    sys.argv[1:] = [x for name, fd in zip(names, fds, strict=True) for x in (f"--{name}", str(fd))]
    sys.exit(engine_main.main())


if __name__ == "__main__":
    asked = int(sys.argv[2])
    preload()
    from tests.support.patches import front

    answer(asked, run)
