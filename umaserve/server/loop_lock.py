"""Lets another thread touch what the tasks of a trio run share: while they all wait."""

from __future__ import annotations

import threading

import trio


class LoopLock(trio.abc.Instrument):
    """Held by trio's thread from when its wait for events ends to when the next one begins.

    So a thread that has it (``with lock.held:``) has the front for itself, as a task has between
    two checkpoints; trio's thread waits for it before it runs tasks again.  It must not call trio
    meanwhile: waking a task, say, is done through ``TrioToken.run_sync_soon``.
    """

    def __init__(self) -> None:
        self.held = threading.Lock()
        self._started = False

    def start(self) -> None:
        """To be called by a task of the run that it is for; again is harmless."""
        if not self._started:
            self._started = True
            self.held.acquire()
            trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.held.release()

    def after_io_wait(self, timeout: float) -> None:
        self.held.acquire()

    def after_run(self) -> None:
        # a thread that is left behind must not wait for ever
        self._started = False
        self.held.release()
