"""Renders conversations for the loop: at once where that is quick, else on a thread beside it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

import trio

from umaserve.engine.messages import Ready
from umaserve.protocol import ChatMessage
from umaserve.server.chat import ChatRenderer

QUICK_S = 0.002  # what the loop renders itself; a hand-over would cost as much on a busy machine

Outcome = str | Exception  # as `ChatRenderer.render` returns it, or raises
Done = Callable[[Outcome], None]


class ChatThread:
    """A template may be slow, and a conversation long; streams go on meanwhile.

    The thread is started when it is needed first, and left alone at the end of the process.
    """

    def __init__(self) -> None:
        self._renderer = ChatRenderer()
        self._work: queue.SimpleQueue[tuple[Callable[[], Outcome], Done, trio.lowlevel.TrioToken]]
        self._work = queue.SimpleQueue()
        self._waiting = 0
        self._started = False

    def render(
        self, messages: Sequence[ChatMessage], ready: Ready, done: Done
    ) -> Outcome | None:
        """The outcome; or ``None``, and ``done`` is called with it later, in the loop."""

        def outcome() -> Outcome:
            try:
                return self._renderer.render(messages, ready)
            except Exception as error:
                return error

        # the renderer is the thread's while it has work
        if not self._waiting and self._renderer.seconds(messages, ready) <= QUICK_S:
            return outcome()
        self._waiting += 1
        self._work.put((outcome, done, trio.lowlevel.current_trio_token()))
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="chat templates", daemon=True).start()
        return None

    def _run(self) -> None:
        while True:
            outcome, done, loop = self._work.get()
            result = outcome()
            with contextlib.suppress(trio.RunFinishedError):
                loop.run_sync_soon(self._finish, done, result)

    def _finish(self, done: Done, result: Outcome) -> None:
        self._waiting -= 1
        done(result)
