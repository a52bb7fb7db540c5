"""Lets another thread touch what the tasks of a trio run share: while they all wait."""

from __future__ import annotations

import threading
from types import TracebackType

import trio


class LoopLock(trio.abc.Instrument):
    """Held by trio's thread from when its wait for events ends to when the next one begins.

    So a thread that holds it (``with lock:``) has the front for itself, as a task has between two
    checkpoints; trio's thread waits for it before it runs tasks again.  It must not call trio
    meanwhile: waking a task, say, is done through ``TrioToken.run_sync_soon``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """To be called by a task of the run that it is for; again is harmless."""
        if not self._started:
            self._started = True
            self._lock.acquire()
            trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self._lock.release()

    def after_io_wait(self, timeout: float) -> None:
        self._lock.acquire()

    def after_run(self) -> None:
        # a thread that is left behind must not wait for ever
        self._started = False
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
