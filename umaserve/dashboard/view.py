"""State of the screen, and how keys change it: pure, with no terminal and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from umaserve.dashboard.canvas.line import clean
from umaserve.dashboard.rows import SORTS, Row, is_ended, listed, same

RATE_SPAN_S = 2.0
PAGE = 8
MESSAGE_UPDATES = 24  # that a message stays for; a key ends it too
NAMES = 256  # ids of requests that are remembered after their end
LONGEST_FILTER = 40

CANCEL, PROMOTE, DEMOTE, QUIT, REDRAW = "cancel", "promote", "demote", "quit", "redraw"
FIND, LOAD = "find", "load"
LANE_OF = {PROMOTE: "interactive", DEMOTE: "background"}
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -PAGE, "pagedown": PAGE}
_ENDS = ("home", "g", "end", "G")
_ACTS = {"p": PROMOTE, "d": DEMOTE, "c": CANCEL, "x": CANCEL}
_SORTS = tuple(SORTS)

Model = tuple[str, str]  # name and path


@dataclass(frozen=True)
class Command:
    """Action that a key asks for.  ``serial``: the request of ``CANCEL``, ``PROMOTE``, ``DEMOTE``;
    ``name``: the model's path of ``LOAD``.  ``FIND`` asks for `View.choose_model`."""

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
    index: int = 0  # of the selected row, or where the last one was
    paused: bool = False
    help: bool = False
    operator: bool = False  # the second view
    details: bool = False  # of the selected request
    filter: str = ""  # what a request has to contain to be listed
    typing: bool = False  # keys are letters of the filter
    sort: str = _SORTS[0]
    models: Sequence[Model] | None = None  # to choose from
    model_index: int = 0
    message: str = ""
    armed: Command | None = None  # waits for the second press
    tokens_now: float | None = None  # tokens per second over the last RATE_SPAN_S
    _updates: int = 0  # since the message came
    _waiting: Mapping[str, Any] | None = None  # newest overview while paused
    _counts: deque[tuple[float, int]] = field(default_factory=deque)
    _names: dict[int, str] = field(default_factory=dict)  # ids by serial

    @property
    def rows(self) -> list[Row]:
        """The requests that are listed."""
        return listed(self.overview, self._names, self.filter, self.sort)

    @property
    def chosen(self) -> Row | None:
        """The selected request."""
        shown = self.rows
        at = same(shown, self.selected)
        return None if at is None else shown[at]

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
        sessions = overview.get("sessions") or []
        self._names.update({s["serial"]: str(s.get("id")) for s in sessions if "serial" in s})
        for serial in list(self._names)[:-NAMES]:
            del self._names[serial]
        if self.armed is not None and self.armed.kind == CANCEL:
            row = self.chosen
            if row is None or is_ended(row):
                self.armed = None
                self.say("the selected request has ended")
        self._stay()

    def _stay(self) -> None:
        """Keep the selection at its request, or at none: no key was meant for another."""
        shown = self.rows
        at = same(shown, self.selected)
        if at is not None:
            self.index = at
        elif self.selected is not None:
            self.selected, self.armed, self.details = None, None, False
            self.say("the selected request is not listed any more")
        self.index = min(self.index, max(len(shown) - 1, 0))

    def say(self, message: str) -> None:
        """Show a message in the last line."""
        self.message, self._updates = message, 0

    def choose_model(self, models: Sequence[Model]) -> None:
        """Ask which model is to be loaded: of the daemon's, where it has several, or of these."""
        known = self.overview.get("models") or ()
        own = [(f"{each['id']}, {each['state']}", str(each["id"])) for each in known]
        models = [*own, *models] if len(own) > 1 else models
        if not models:
            self.say("no model was found on this machine; `umaserve pull` fetches some")
            return
        self.models, self.model_index, self.help, self.details = models, 0, False, False

    def lost(self, note: str) -> None:
        """There is no daemon now, and ``note`` says so."""
        self.note, self.overview, self._waiting = note, {}, None
        self.selected = self.armed = self.models = None
        self.details = self.typing = False
        self.tokens_now = None
        self._counts.clear()
        self._names.clear()

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

    # --- keys -------------------------------------------------------------------------------------

    def press(self, key: str) -> Command | None:
        """Return the command of a key; None where the key changes this view alone."""
        armed, self.armed, self.message = self.armed, None, ""
        if key == "redraw":
            return Command(REDRAW)
        if self.models is not None:
            return self._choose(key)
        if self.typing:
            self._type(key)
        elif key in _MOVES or key in _ENDS:
            self._move(key)
        elif key in _ACTS:
            return self._act(_ACTS[key], armed)
        elif key == "l":
            return Command(FIND)
        elif key == "q":
            if not self.local or (armed is not None and armed.kind == QUIT):
                return Command(QUIT)
            self.armed = Command(QUIT)
            self.say("q again stops the daemon; what runs finishes first (any other key: no)")
        else:
            self._show(key)
        return None

    def _show(self, key: str) -> None:
        """Keys that change what is seen alone."""
        if key == " ":
            self.paused = not self.paused
            if not self.paused and self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                self.update(waiting)
        elif key in ("?", "h"):
            self.help = not self.help
        elif key == "m":
            self.operator = not self.operator
        elif key == "enter":
            self.details = not self.details and self._selected() is not None
        elif key == "/":
            self.typing = True
        elif key == "s":
            self.sort = _SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)]
            self._stay()
        elif key == "escape":
            if self.help or self.details:
                self.help = self.details = False
            else:
                self.selected, self.filter = None, ""

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and len(self.filter) < LONGEST_FILTER:
            self.filter += key
        self._stay()

    def _choose(self, key: str) -> Command | None:
        models = self.models or []
        if key in _MOVES or key in _ENDS:
            self.model_index = _moved(self.model_index, key, len(models))
        elif key in ("escape", "q", "l"):
            self.models = None
        elif key == "enter":
            self.models = None
            return Command(LOAD, name=models[self.model_index][1])
        return None

    def _move(self, key: str) -> None:
        shown = self.rows
        if not shown:
            return
        if self.selected is not None or key in _ENDS:
            self.index = _moved(self.index, key, len(shown))
        self.selected = shown[self.index].get("serial")

    def _selected(self) -> Row | None:
        row = self.chosen
        if row is None:
            self.say("select a request first: arrow keys, or j and k")
        return row

    def _act(self, kind: str, armed: Command | None) -> Command | None:
        """Ask for another lane of the selected request, or for its end at the second press."""
        row = self._selected()
        if row is None:
            return None
        name = clean(row.get("id"), 40)
        if is_ended(row):
            self.say(f"{name} has ended")
            return None
        command = Command(kind, int(row["serial"]), name)
        if kind != CANCEL:
            if row.get("lane") != LANE_OF[kind]:
                return command
            self.say(f"{name} is {LANE_OF[kind]} already")
        elif armed == command:
            self.selected, self.details = None, False
            return command
        else:
            self.armed = command
            app = clean(row.get("app") or "its client", 20)
            self.say(f"c again cancels {name} of {app} (any other key: no)")
        return None


def _moved(index: int, key: str, count: int) -> int:
    if key in ("home", "g"):
        return 0
    if key in ("end", "G"):
        return count - 1
    return min(max(index + _MOVES[key], 0), count - 1)
