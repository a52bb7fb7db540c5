"""The dashboard as trio tasks: what comes from the daemon, keys and signals in, screens out."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import trio

from umaserve.assets import demo_model_path
from umaserve.dashboard.canvas.terminal import PLAIN_INTERVAL_S, Terminal, decode
from umaserve.dashboard.panels.sentence import summary
from umaserve.dashboard.screen import Screen
from umaserve.dashboard.view import CANCEL, FIND, LANE_OF, LOAD, QUIT, REDRAW, Command, Model, View
from umaserve.models.finding.places import find_all, places

REFRESH_S = 0.25
SHORTEST_S = 0.02  # between two screens, when keys repeat
LEAVE_S = 1.0
STOP_S = 0.5
BACKGROUND_S = 0.5

JOB_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


Show = Callable[[Mapping[str, Any]], None]
Lost = Callable[[str], None]


class Feed(Protocol):
    """Where the numbers come from and where keys go."""

    async def run(self, interval_s: float, show: Show, lost: Lost) -> None:
        """Call ``show(overview)`` every interval, ``lost(why)`` when there is no daemon."""
        ...

    async def cancel(self, serial: int) -> bool:
        """Whether there was such a request."""
        ...

    async def set_lane(self, serial: int, lane: str) -> bool: ...

    def models(self) -> list[Model]:
        """Models of this machine; may take a while, in a thread."""
        ...

    async def load(self, path: str) -> str:
        """Serve another model; why not, or an empty string."""
        ...


def models_here(model_dir: str = "") -> list[Model]:
    """Return names and paths, the bundled model last; looks into the folders of other tools."""
    found = [
        (one.name, one.path) for one in find_all(places(model_dir=model_dir)) if not one.problem
    ]
    return [*found, ("demo, the bundled model", str(demo_model_path()))]


class Dashboard:
    """``run`` draws until ``q``, one of ``leaving`` (signals), the terminal's end, or a cancel.

    ``broken`` is the error with which the terminal ended.  The terminal is given back in any case.
    """

    def __init__(
        self,
        feed: Feed,
        view: View | None = None,
        *,
        terminal: Terminal | None = None,
        interval_s: float = REFRESH_S,
        leaving: tuple[signal.Signals, ...] = (),
    ) -> None:
        self.view = view or View()
        self.terminal = terminal or Terminal()
        self.view.keys = self.terminal.input is not None
        self.broken: OSError | None = None
        self._feed = feed
        self._interval_s = interval_s
        self._leaving = leaving
        self._changed = trio.Event()
        self._drawing = trio.Lock()
        self._resumed = trio.Event()
        self._status = 0
        self._nursery: trio.Nursery

    async def run(self) -> int:
        """Exit status: 0 after ``q``, 128 and the signal's number after one of ``leaving``."""
        signals = (*JOB_SIGNALS, *(s for s in self._leaving if not _ignored(s)))
        interval_s = PLAIN_INTERVAL_S if self.terminal.plain else self._interval_s
        try:
            with trio.open_signal_receiver(*signals) as received:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._signals, received)
                    self._nursery.start_soon(self._draw)
                    if self.terminal.input is not None:
                        self._nursery.start_soon(self._keys, self.terminal.input)
                    await self._feed.run(interval_s, self._show, self._lost)
                    self._nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(LEAVE_S, shield=True):
                # in a thread: a terminal that takes nothing must not keep us
                await trio.to_thread.run_sync(self.terminal.close, abandon_on_cancel=True)
        return self._status

    def _leave(self, status: int = 0) -> None:
        self._status = status
        self._nursery.cancel_scope.cancel()

    # --- in ---------------------------------------------------------------------------------------

    def _show(self, overview: Mapping[str, Any]) -> None:
        self.view.update(overview)
        self._changed.set()

    def _lost(self, why: str) -> None:
        self.view.lost(why)
        self._changed.set()

    async def _keys(self, fd: int) -> None:
        while True:
            await trio.lowlevel.wait_readable(fd)
            if not self.terminal.foreground:  # what is typed there is for another job
                await trio.sleep(BACKGROUND_S)
                continue
            try:
                data = os.read(fd, 1024)
            except OSError:
                return
            if not data:
                return
            for key in decode(data):
                command = self.view.press(key)
                if command is not None:
                    self._obey(command)
            self._changed.set()

    def _obey(self, command: Command) -> None:
        if command.kind == QUIT:
            self._quit()
        elif command.kind == REDRAW:
            self.terminal.refresh()
        else:
            self._nursery.start_soon(self._ask, command)

    def _quit(self) -> None:
        if self.view.local:  # as Ctrl-C does: the daemon ends in good order, and with it this
            signal.raise_signal(signal.SIGTERM if _ignored(signal.SIGINT) else signal.SIGINT)
        else:
            self._leave()

    async def _ask(self, command: Command) -> None:
        if command.kind in (FIND, LOAD):
            await self._load(command)
            return
        name = command.name
        if command.kind == CANCEL:
            found = await self._feed.cancel(command.serial)
            done = f"{name} is cancelled"
        else:
            lane = LANE_OF[command.kind]
            found = await self._feed.set_lane(command.serial, lane)
            done = f"{name} is {lane} now"
        self.view.say(done if found else f"{name} has ended already")
        self._changed.set()

    async def _load(self, command: Command) -> None:
        if command.kind == FIND:
            found = await trio.to_thread.run_sync(self._feed.models, abandon_on_cancel=True)
            self.view.choose_model(found)
        else:
            name = os.path.basename(command.name)
            self.view.say(f"loading {name}; the present model serves until it is proved")
            self._changed.set()
            self.view.say(await self._feed.load(command.name) or f"{name} is served now")
        self._changed.set()

    # --- signals ----------------------------------------------------------------------------------

    async def _signals(self, received: AsyncIterator[int]) -> None:
        async for number in received:
            if number == signal.SIGWINCH:
                self.terminal.refresh()
                self._changed.set()
            elif number == signal.SIGTSTP:
                self._nursery.start_soon(self._stop)
            elif number == signal.SIGCONT:
                self._resumed.set()
                async with self._drawing:
                    self.terminal.continued()
                self._changed.set()
            else:
                self._leave(128 + number)
                return

    async def _stop(self) -> None:
        """Ctrl-Z: give the terminal back, then stop as everybody does."""
        async with self._drawing:
            await trio.to_thread.run_sync(self.terminal.close, abandon_on_cancel=True)
            self._resumed = trio.Event()
            ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            try:
                os.kill(os.getpid(), signal.SIGTSTP)
                with trio.move_on_after(STOP_S):  # nobody stops where there is no job control
                    await self._resumed.wait()
            finally:
                signal.signal(signal.SIGTSTP, ours)
            self.terminal.continued()
        self._changed.set()

    # --- out --------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                async with self._drawing:
                    # in a thread: a terminal that takes nothing must not stop the daemon
                    view = copy.copy(self.view)
                    await trio.to_thread.run_sync(self._put, view, abandon_on_cancel=True)
                await trio.sleep(SHORTEST_S)
        except OSError as error:  # the terminal is gone, or a file that cannot be written
            self.broken = error
            self._leave()

    def _put(self, view: View) -> None:
        if self.terminal.plain:
            if view.note or view.overview:
                self.terminal.say(view.note.replace("\n", "; ") or summary(view.overview))
        else:
            self.terminal.paint(Screen(*self.terminal.size).lines(view))


def _ignored(number: signal.Signals) -> bool:
    """Told to be, as by ``nohup``."""
    return signal.getsignal(number) == signal.SIG_IGN
