"""Names of the models on this machine, which requests may ask for though nobody configured them."""

from __future__ import annotations

import contextlib
import time

from umaserve.models.finding.places import find_all, places
from umaserve.models.gguf.header import GGUFError
from umaserve.server.engines.slow_files import ask_file
from umaserve.server.requests.service import plain

FRESH_S = 10.0  # in which no other models are looked for


class ModelsIndex:
    """``paths``: the files of models by the names that ``umaserve models`` shows."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self.paths: dict[str, str] = {}
        self._read_s = -FRESH_S

    @property
    def is_old(self) -> bool:
        """Whether there may be other models by now."""
        return time.monotonic() > self._read_s + FRESH_S

    async def read(self) -> None:
        """Look into the folders of all tools, in a thread."""
        self._read_s = time.monotonic()
        # the folders do not answer, or may not be read, or there is no home
        with contextlib.suppress(GGUFError, OSError, RuntimeError):
            self.paths = await ask_file(_paths_of, self._model_dir)


def _paths_of(model_dir: str) -> dict[str, str]:
    return {
        plain(name): each.path
        for each in find_all(places(model_dir=model_dir))
        if not each.problem
        for name in (each.name, *each.also)
    }
