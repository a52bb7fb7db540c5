"""Notices that the file of a model which is served was written over.

Weights that are mapped change under the engine then, and what it computes is no model's any more.
A file that was moved away, or another one in its place, does not concern the running engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from umaserve.models.identity import ModelIdentity, file_facts, identify
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.engines.slow_files import ask_file

EVERY_S = 2.0


def written_over(known: ModelIdentity, path: str) -> ModelIdentity | None:
    """Return the new identity of the same files if contents or names changed, else ``None``."""
    facts = file_facts(path)
    same_files = [old[:2] == new[:2] for old, new in zip(known.files, facts, strict=False)]
    if facts == known.files or not all(same_files):
        return None
    return identify(path)


async def watch_file(engine: EngineHandle, log: Callable[..., None]) -> None:
    """Until the engine ends; kills it when its model's file is another one than it has loaded."""
    await engine.settled.wait()
    known = engine.ready.identity if engine.ready is not None else None
    path = engine.start.model_path
    while known is not None and not engine.exited.is_set():
        with trio.move_on_after(EVERY_S):
            await engine.exited.wait()
            return
        try:
            found = await ask_file(partial(written_over, known), path)
        except Exception as error:  # it is gone, or does not answer: what is mapped stays as it is
            log("debug", f"{path} cannot be looked at: {error}")
            continue
        if found is not None and found.digest != known.digest:
            log("warn", f"{path} was written over while it is served; its engine is ended")
            engine.kill(why="was ended, since its model's file was written over")
            return
        known = found or known
