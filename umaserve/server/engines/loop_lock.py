"""Lets another thread touch what the tasks of a trio run share: while they all wait."""

from __future__ import annotations

import threading

import trio


class LoopLock(trio.abc.Instrument):
    """Held by trio's thread from when its wait for events ends to when the next one begins.

    So a thread that has it (``with lock:``) has the front for itself, as a task has between two
    checkpoints.  Trio's thread waits for it before it runs tasks again.  It must not call trio
    meanwhile: waking a task, say, is done through ``TrioToken.run_sync_soon``.

    Tasks that always have something to do keep nobody out: whoever waits stands in the door, and
    trio's thread goes through the same door.
    """

    def __init__(self) -> None:
        self.held = threading.Lock()
        self._door = threading.Lock()
        self._started = False
        self._ours = False  # trio's thread has it

    def __enter__(self) -> None:
        with self._door:
            self.held.acquire()

    def __exit__(self, *_: object) -> None:
        self.held.release()

    def start(self) -> None:
        """To be called by a task of the run that it is for; again is harmless."""
        if not self._started:
            self._started = True
            self.after_io_wait(0.0)
            trio.lowlevel.add_instrument(self)

    # these cannot raise: trio would drop the instrument, and others go on without the lock

    def before_io_wait(self, timeout: float) -> None:
        if self._ours:
            self._ours = False
            self.held.release()

    def after_io_wait(self, timeout: float) -> None:
        if not self._ours:
            with self._door:
                self.held.acquire()
            self._ours = True

    def after_run(self) -> None:
        # a thread that is left behind must not wait for ever
        self._started = False
        self.before_io_wait(0.0)
