"""Looking at files that may not answer: on a network, on a disk that has gone, in an automount.

A system call on such a file can take for ever, and nobody can end it.  So it is made in a thread
that is left behind when the time is up; whoever asked is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from umaserve.config import Config
from umaserve.models.gguf.header import GGUFError
from umaserve.models.needs import ModelFile

from .start.model_start import Need, memory_of

LIMIT_S = 20.0
THREADS = 8  # that may be left behind at a time

T = TypeVar("T")
_limiter: list[trio.CapacityLimiter] = []


async def ask_file(look: Callable[[str], T], path: str) -> T:
    """``look(path)`` in a thread.  Raises what it raises, and ``GGUFError`` when there is no
    answer in time."""
    if not _limiter:
        _limiter.append(trio.CapacityLimiter(THREADS))
    with trio.move_on_after(LIMIT_S):
        return await trio.to_thread.run_sync(
            look, path, abandon_on_cancel=True, limiter=_limiter[0]
        )
    raise GGUFError(
        f"{path} cannot be opened: there was no answer in {LIMIT_S:g} s; is its disk or its "
        "network file system there?"
    )


async def needs_of(file: ModelFile, config: Config, role: str = "") -> Need:
    """Return `memory_of`, which opens files.  Raises ``GGUFError``."""
    return await ask_file(lambda _: memory_of(file, config, role), file.path)
