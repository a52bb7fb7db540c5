"""What the screen shows and what keys do to it: pure state, no terminal and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from umaserve.dashboard.line import clean

RATE_SPAN_S = 2.0
PAGE = 8
MESSAGE_UPDATES = 24  # that a message stays for; a key ends it too

CANCEL, PROMOTE, DEMOTE, QUIT, REDRAW = "cancel", "promote", "demote", "quit", "redraw"
LANE_OF = {PROMOTE: "interactive", DEMOTE: "background"}
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -PAGE, "pagedown": PAGE}


@dataclass(frozen=True)
class Command:
    """What a key asks for; ``serial`` names the session of ``CANCEL``, ``PROMOTE``, ``DEMOTE``."""

    kind: str
    serial: int = 0
    name: str = ""


@dataclass
class View:
    """``overview`` is the newest ``metrics`` event with ``sessions`` (see docs/PROTOCOL.md); while
    ``note`` is set, it is shown instead.  ``local``: the daemon itself draws."""

    local: bool = False
    where: str = ""  # the socket
    keys: bool = True  # somebody can press some
    overview: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    selected: int | None = None  # serial
    index: int = 0  # of the selected session, or where the last one was
    paused: bool = False
    help: bool = False
    message: str = ""
    armed: Command | None = None  # waits for the second press
    tokens_now: float | None = None  # tokens per second over the last RATE_SPAN_S
    _updates: int = 0  # since the message came
    _waiting: Mapping[str, Any] | None = None  # newest overview while paused
    _counts: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        return self.overview.get("sessions") or []

    def update(self, overview: Mapping[str, Any]) -> None:
        """Take a new overview; a paused screen keeps the old one."""
        self.note = ""
        self._updates += 1
        if self._updates > MESSAGE_UPDATES:
            self.message, self.armed = "", None
        if self.paused:
            self._waiting = overview
            return
        self.overview = overview
        self._count(overview.get("metrics") or {})
        serials = [session.get("serial") for session in self.sessions]
        if self.selected in serials:
            self.index = serials.index(self.selected)
        elif self.selected is not None:
            # none rather than its neighbour: a key in flight was not meant for that one
            self.selected = self.armed = None
            self.say("the selected session has ended")
        self.index = min(self.index, max(len(serials) - 1, 0))

    def say(self, message: str) -> None:
        """Show a message in the last line."""
        self.message, self._updates = message, 0

    def lost(self, note: str) -> None:
        """There is no daemon now, and ``note`` says so."""
        self.note, self.overview, self._waiting = note, {}, None
        self.selected = self.armed = None
        self.tokens_now = None
        self._counts.clear()

    def _count(self, metrics: Mapping[str, Any]) -> None:
        at, tokens = metrics.get("uptime_s"), metrics.get("tokens_generated_total")
        if at is None or tokens is None:
            return
        counts = self._counts
        if counts and at < counts[-1][0]:  # another daemon
            counts.clear()
        counts.append((at, tokens))
        while len(counts) > 2 and counts[1][0] <= at - RATE_SPAN_S:
            counts.popleft()
        span_s = at - counts[0][0]
        self.tokens_now = (tokens - counts[0][1]) / span_s if span_s > 0 else None

    def press(self, key: str) -> Command | None:
        """What has to be done about a key, if that is more than a change of this view."""
        armed, self.armed, self.message = self.armed, None, ""
        if key in _MOVES or key in ("home", "g", "end", "G"):
            self._move(key)
        elif key in ("p", "d"):
            return self._lane(PROMOTE if key == "p" else DEMOTE)
        elif key in ("c", "x"):
            return self._cancel(armed)
        elif key == " ":
            self.paused = not self.paused
            if not self.paused and self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                self.update(waiting)
        elif key in ("?", "h"):
            self.help = not self.help
        elif key == "escape":
            self.help, self.selected = False, None
        elif key == "redraw":
            return Command(REDRAW)
        elif key == "q":
            if not self.local or (armed is not None and armed.kind == QUIT):
                return Command(QUIT)
            self.armed = Command(QUIT)
            self.say("q again stops the daemon; what runs finishes first (any other key: no)")
        return None

    def _move(self, key: str) -> None:
        sessions = self.sessions
        if not sessions:
            return
        last = len(sessions) - 1
        if key in ("home", "g"):
            index = 0
        elif key in ("end", "G"):
            index = last
        elif self.selected is None:
            index = self.index
        else:
            index = self.index + _MOVES[key]
        self.index = min(max(index, 0), last)
        self.selected = sessions[self.index].get("serial")

    def _chosen(self) -> Mapping[str, Any] | None:
        for session in self.sessions:
            if self.selected is not None and session.get("serial") == self.selected:
                return session
        self.say("select a session first: arrow keys, or j and k")
        return None

    def _lane(self, kind: str) -> Command | None:
        session = self._chosen()
        if session is None:
            return None
        name = clean(session.get("id"), 40)
        if session.get("lane") == LANE_OF[kind]:
            self.say(f"{name} is {LANE_OF[kind]} already")
            return None
        return Command(kind, int(session["serial"]), name)

    def _cancel(self, armed: Command | None) -> Command | None:
        session = self._chosen()
        if session is None:
            return None
        name = clean(session.get("id"), 40)
        command = Command(CANCEL, int(session["serial"]), name)
        if armed == command:
            self.selected = None
            return command
        self.armed = command
        app = clean(session.get("app") or "its client", 20)
        self.say(f"c again cancels {name} of {app} (any other key: no)")
        return None
