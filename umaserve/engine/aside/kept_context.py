"""A context that is made at first use, in a thread of its own, and freed when it is unused."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from umaserve.engine.model.loaded import Setup
from umaserve.llama.errors import LlamaError

from .context import AsideContext, why_no_room

KEEP_S = 60.0  # that an unused context is kept


class KeptContext:
    """For the loop's thread.

    ``hooks`` returns further fields of ``llama_context_params``.  ``threads``: of the context, 0 =
    those of the ticks.
    """

    def __init__(
        self, setup: Setup, hooks: Callable[[], dict[str, Any]] = dict, threads: int = 0
    ) -> None:
        self._setup, self._hooks, self._threads = setup, hooks, threads
        self.context: AsideContext | None = None
        self._opened: deque[AsideContext | str] = deque()
        self._thread: threading.Thread | None = None
        self._used_s = 0.0
        self.is_opening = False

    @property
    def is_awaited(self) -> bool:
        """Whether a context is being made, and not there yet."""
        return self.is_opening and not self._opened

    def ready(self, tokens: int) -> AsideContext | str | None:
        """Return the context if it has room for a text; else one is made.

        A string says why there can be none.
        """
        self._used_s = time.monotonic()
        why = self._take()
        if why is not None:
            return why
        if self.context is not None and self.context.cells >= tokens:
            return self.context
        if not self.is_opening:
            self.close()
            why = why_no_room(self._setup.loaded, tokens)
            if why:
                return why
            self.is_opening = True
            self._thread = threading.Thread(target=self._open, args=(tokens,), daemon=True)
            self._thread.start()
        return None

    def _take(self) -> str | None:
        """Take over the context that has been made; return why there is none, where it failed."""
        if not self._opened:
            return None
        self.is_opening = False
        opened = self._opened.popleft()
        if isinstance(opened, str):
            return opened
        self.context = opened
        return None

    def _open(self, tokens: int) -> None:
        """In a thread of its own: no tick waits for it."""
        try:
            context = AsideContext(self._setup, tokens, self._hooks())
            if self._threads:
                context.context.set_threads(self._threads, self._threads)
            self._opened.append(context)
        except LlamaError as error:
            self._opened.append(str(error))
        self._setup.control.notify()

    def idle_ms(self) -> int | None:
        """Ms until `free_unused` has something to do; None = for ever."""
        if self.context is None and not self._opened:
            return None
        return max(int(1000 * (self._used_s + KEEP_S - time.monotonic())), 0) + 1

    def free_unused(self) -> None:
        """Free the context if no text needed it for a while, or none since it was asked for."""
        if not self.is_awaited and time.monotonic() > self._used_s + KEEP_S:
            self.close()

    def close(self) -> None:
        """Free the context, and one that is still being made."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._take()
        if self.context is not None:
            self.context.close()
            self.context = None
