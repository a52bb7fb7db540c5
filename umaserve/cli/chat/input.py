'''Where the messages of a chat come from: a person at a terminal, or a file or a pipe.

A message is a line.  What stands between two """ is one message, whatever its lines.
'''

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from umaserve.texts import printable

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether a message begins with quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 6 or not text.endswith(QUOTES))


def without_quotes(text: str) -> str:
    """The message between its quotes; a message without them as it is."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def lines_of_input() -> str | None:
    """The next message of a file or a pipe; ``None`` behind the last."""
    text = sys.stdin.readline()
    while text and is_open(text):
        more = sys.stdin.readline()
        if not more:
            break
        text += more
    return without_quotes(text.rstrip("\n")) if text else None


def _completer(commands: Sequence[str], with_file: Sequence[str]) -> Completer:
    """Return what completes commands, and names of files behind those ``with_file``."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    class Words(Completer):
        _paths = PathCompleter(expanduser=True)

        def get_completions(self, document: Document, event: object) -> Iterable[Completion]:
            word, space, rest = document.text_before_cursor.partition(" ")
            if not space and word.startswith("/"):
                found = (name for name in commands if name.startswith(word))
                return [Completion(name, -len(word)) for name in found]
            if space and word in with_file:
                return list(self._paths.get_completions(Document(rest), event))  # type: ignore[arg-type]
            return []

    return Words()


def typed_messages(
    commands: Sequence[str],
    with_file: Sequence[str],
    on_interrupt: Callable[[], None],
    name: Callable[[], str],
) -> Callable[[], str | None]:
    """A function that asks a person for the next message; it returns ``None`` after Ctrl-D.

    Enter sends, Alt-Enter begins a new line, and pasted lines are one message.  Tab completes
    ``commands``, and names of files behind those ``with_file``.  Ctrl-C at the prompt drops what
    was typed, calls ``on_interrupt`` and asks again.  ``name`` is shown at the right.
    """
    # the answer to its question where the cursor is would mix with what is typed ahead
    os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        "> ",
        rprompt=lambda: printable(name()),
        multiline=True,
        prompt_continuation="  ",
        key_bindings=keys,
        completer=_completer(commands, with_file),
        complete_while_typing=False,
    )

    def ask() -> str | None:
        while True:
            try:
                return without_quotes(session.prompt().strip("\n"))
            except KeyboardInterrupt:
                on_interrupt()
            except EOFError:
                return None

    return ask
