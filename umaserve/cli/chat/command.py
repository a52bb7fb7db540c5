"""``umaserve chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from umaserve.cli.chat.conversation import Conversation, NotAConversation
from umaserve.cli.chat.input import lines_of_input, typed_messages
from umaserve.cli.chat.talk import Talk, turns_of
from umaserve.cli.parts.common import EXIT_OK, Parser, add_socket, say
from umaserve.cli.parts.pictures import picture_parts

HELP = '''/system TEXT  set the system message; without TEXT there is none
/set          show temperature and the like; /set NAME VALUE changes one
/model        the model that answers; /model NAME takes one of `umaserve ps`,
              or serves a file for everybody
/retry        ask the last question again
/undo         take the last question and its answer back
/reset        forget the conversation
/image FILE   show a picture with the next message, to a model that reads them
/save FILE    write the conversation to a file; /load FILE goes on with it
/stats        what the last answer took, and how full the context is
/exit         leave (so does Ctrl-D); Ctrl-C cuts an answer short
Alt-Enter begins a new line, and so does Enter behind """ until the next """.
Tab completes commands and files.'''


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve chat",
        description="Talk to the model.  Inside, /help lists what you can do.  A message is a "
        'line; several lines go between """ and """, or are pasted, or end with Alt-Enter.',
    )
    parser.add_argument(
        "--system",
        metavar="TEXT",
        help="the system message to start with; "
        "every user of this machine can read it in the process list, unlike /system inside",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of one answer")
    parser.add_argument("--temp", type=float, metavar="X", help="temperature; 0 = greedy")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same answers")
    parser.add_argument("--priority", choices=("interactive", "background"), help="the lane")
    parser.add_argument("--model", metavar="NAME", help="a model that `umaserve ps` lists")
    add_socket(parser)
    return parser


def _lane(text: str) -> str:
    if text not in ("interactive", "background"):
        raise ValueError
    return text


# of /set, name: (option of a request, what reads its value, what it takes)
OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "temp": ("temperature", float, "a number; 0 = greedy"),
    "top-p": ("top_p", float, "a number; 1 = off"),
    "top-k": ("top_k", int, "a whole number; 0 = off"),
    "min-p": ("min_p", float, "a number; 0 = off"),
    "repeat-penalty": ("repeat_penalty", float, "a number; 1 = off"),
    "seed": ("seed", int, "a whole number"),
    "max-tokens": ("max_tokens", int, "a whole number"),
    "priority": ("priority", _lane, "interactive or background"),
}
ALSO = {"temperature": "temp", "num_predict": "max-tokens", "num-predict": "max-tokens"}
WITH_FILE = ("/save", "/load", "/image")


class _Commands:
    """Commands that can be typed besides messages; each returns an exit status, or None for 0."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        settings = talk.settings
        self.by_name: dict[str, Callable[[str], int | None]] = {
            "/help": lambda _: say(HELP),
            "/image": self._image,
            "/load": self._load,
            "/model": lambda name: talk.change_model(name) if name else talk.tell_model(),
            "/reset": self._reset,
            "/retry": lambda _: talk.retry(),
            "/save": self._save,
            "/set": lambda text: say(_change(settings, text) if text else _shown(settings)),
            "/stats": lambda _: say(talk.stats()),
            "/system": self._system,
            "/undo": self._undo,
        }

    def _system(self, text: str) -> None:
        self._talk.conversation.system = text or None
        say("(from the next message on)" if text else "(no system message from now on)")

    def _reset(self, _: str) -> None:
        self._talk.begin(Conversation(self._talk.conversation.system))
        say("(forgotten)")

    def _undo(self, _: str) -> None:
        question = self._talk.undo()
        say(
            "(there is nothing to take back)" if question is None else f"(gone: {_short(question)})"
        )

    def _save(self, path: str) -> None:
        try:
            self._talk.conversation.save(path)
        except OSError as error:
            say(f"error: {path}: {error.strerror or error}; nothing was saved")
        except NotAConversation as error:
            say(f"error: {path}: {error}; name another file")
        else:
            say(f"({turns_of(len(self._talk.conversation.turns))} saved)")

    def _load(self, path: str) -> None:
        try:
            loaded = Conversation.load(path)
        except OSError as error:
            say(f"error: {path}: {error.strerror or error}")
        except NotAConversation as error:
            say(f"error: {path}: {error}")
        else:
            self._talk.begin(loaded)
            turns = loaded.turns
            last = f"; the last question was: {_short(turns[-1].question)}" if turns else ""
            say(f"({turns_of(len(turns))} loaded{last})")

    def _image(self, path: str) -> None:
        found = picture_parts([path])
        if found is not None:
            self._talk.pictures += found
            count = len(self._talk.pictures)
            say(f"(the next message shows {'a picture' if count == 1 else f'{count} pictures'})")


def chat(arguments: list[str]) -> int:
    """The command; returns the exit status: that of the last message."""
    given = _parser().parse_args(arguments)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings: dict[str, Any] = {
        "max_tokens": given.max_tokens,
        "temperature": given.temp,
        "seed": given.seed,
        "priority": given.priority,
        "model": given.model,
    }
    talk = Talk(given.socket, settings, Conversation(given.system), gives_up=not interactive)
    commands = _Commands(talk)
    read = lines_of_input
    if interactive:
        say(f"{talk.meet_model() or 'no model is loaded'}; /help lists what you can do")
        names = [*commands.by_name, "/exit"]
        left = partial(say, "(/exit or Ctrl-D leaves)")
        read = typed_messages(names, WITH_FILE, left, lambda: talk.model)
    status = EXIT_OK
    while (text := read()) is not None:
        word, _, rest = text.strip().partition(" ")
        if not word:
            continue
        if word in ("/exit", "/quit"):
            break
        if word in WITH_FILE and not rest.strip():
            say(f"{word} needs the name of a file")
            status = EXIT_OK
        elif word in commands.by_name:
            status = commands.by_name[word](rest.strip()) or EXIT_OK
        elif word.startswith("/") and word[1:].isalpha() and "\n" not in text:
            say(f"there is no {word}; /help lists what there is")
        else:
            status = talk.ask(text)
    return status


def _shown(settings: dict[str, Any]) -> str:
    """All options with their values; ``-`` is the daemon's default."""
    rows = []
    for name, (option, _, takes) in OPTIONS.items():
        value = settings.get(option)
        rows.append(f"{name:<15} {'-' if value is None else value!s:<12} {takes}")
    return "\n".join([*rows, "`/set NAME VALUE` sets one, `/set NAME -` takes the default"])


def _change(settings: dict[str, Any], text: str) -> str:
    """Change ``settings`` as ``NAME VALUE`` says; returns what to tell."""
    word, _, value = text.partition(" ")
    name = ALSO.get(word, word.replace("_", "-"))
    if name not in OPTIONS:
        return f"there is no {word}; it can be {', '.join(OPTIONS)}"
    option, read, takes = OPTIONS[name]
    value = value.strip()
    if value in ("-", "default"):
        settings[option] = None
        return f"({name} is the daemon's default from now on)"
    try:
        settings[option] = read(value)
    except ValueError:
        return f"{name} takes {takes}"
    return f"({name} is {value} from now on)"


def _short(text: str) -> str:
    """The beginning of a message, in a line."""
    line = " ".join(text.split())
    return line if len(line) <= 50 else f"{line[:47]}..."
