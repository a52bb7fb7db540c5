"""How a fault or a spy gets into an engine's process.

    DrivenEngine(patch=partial(FUNCTION, ...))

FUNCTION is one of ``engine_faults`` or ``engine_spies``; its arguments are keywords, and JSON.  The
engine has imported its modules before: what a module has imported by name is changed there.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umaserve.engine import __main__ as engine_main
from umaserve.jit import cache as jit_cache

ROOT = Path(__file__).resolve().parents[3]


def command(patch: Callable[..., None]) -> list[str]:
    """Starts a Python whose engine is patched; the engine's arguments are to follow."""
    return [sys.executable, "-m", __name__, json.dumps(described(patch))]


def described(patch: Callable[..., None]) -> list[Any]:
    """Return for `apply` what a patch is: its module, name and arguments."""
    given = functools.partial(patch)
    return [given.func.__module__, given.func.__name__, given.keywords]


def apply(description: list[Any]) -> None:
    module, name, keywords = description
    getattr(importlib.import_module(module), name)(**keywords)


def environment() -> dict[str, str]:
    """For `command`: the tests can be imported."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [before])])}


def once_numba_may_load(patch: Callable[..., None]) -> Callable[..., None]:
    """For patches of modules that compile: the engine has said first where their code is kept."""

    @functools.wraps(patch)
    def later(**arguments: Any) -> None:
        use = jit_cache.use_jit_cache

        def use_jit_cache() -> str:
            problem = use()
            patch(**arguments)
            return problem

        jit_cache.use_jit_cache = use_jit_cache

    return later


def keep_cache_in_use() -> None:
    """For a process that runs one engine after another, or forks once it has run one."""
    jit_cache.use_jit_cache = lambda: ""


def say(path: str, *what: Any) -> None:
    with open(path, "a") as file:
        print(json.dumps(what), file=file)


if __name__ == "__main__":
    apply(json.loads(sys.argv.pop(1)))
    sys.exit(engine_main.main())
