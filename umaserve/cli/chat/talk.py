"""Questions of a chat and their answers, through whatever happens to the daemon meanwhile.

Each question has a connection of its own.  So nothing is lost where a connection was idle too long,
the daemon was started anew, or it serves another model now.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from umaserve.cli.chat.conversation import Conversation, Question, Turn
from umaserve.cli.parts.common import (
    EXIT_OK,
    EXIT_SERVER,
    client_of,
    failure,
    model_once_loaded,
    say,
    show,
)
from umaserve.cli.parts.reading import Reading
from umaserve.client import ConnectionFailed, Eos, OtherUser, ServerError, UmaError
from umaserve.visible import for_reader

TOO_LONG = ("E_LIMIT_001", "E_LIMIT_003")
ATTEMPTS = 2  # at one answer, where the daemon goes away
FULL = 0.75  # of the context: from here on an answer might not fit


class Talk:
    """Asks, prints, and remembers.

    ``settings`` are options of a request.  With ``gives_up`` a daemon that cannot be reached raises
    ``ConnectionFailed``; else it is told, and the question can be asked again.
    """

    def __init__(
        self,
        socket: str | None,
        settings: dict[str, Any],
        conversation: Conversation,
        *,
        gives_up: bool,
    ) -> None:
        self._socket = socket
        self.settings = settings
        self._gives_up = gives_up
        self.model = ""  # its name; empty: not known
        self._n_ctx = 0  # tokens of a conversation at most; 0: not known
        self._most_tokens = 0  # the daemon's limit for one answer
        self._number = 0  # of the conversation
        self.begin(conversation)

    def begin(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self._unanswered: str | None = None
        self.pictures: list[dict[str, str]] = []  # of the next question
        self._attempt = 0  # at the last question, by `retry`
        self._last: Eos | None = None
        self._number += 1
        self._session = f"chat-{os.getpid()}-{self._number}"

    def meet_model(self) -> str:
        """The model's name, once it is loaded; empty where there is none.

        Raises ``ConnectionFailed`` and ``ServerError``.
        """
        with client_of(self._socket) as client:
            self._learn(model_once_loaded(client, self.settings.get("model")))
        return self.model

    def tell_model(self) -> int:
        """Say which model answers, and how much of a conversation it holds; an exit status."""
        try:
            name = self.meet_model()
        except UmaError as error:
            return self._failed(error)
        of = f"; conversations of up to {self._n_ctx} tokens" if self._n_ctx else ""
        say(f"({name}{of})" if name else "(no model is loaded; /model NAME serves one)")
        return EXIT_OK

    def change_model(self, name: str) -> int:
        """Go on with another model of the daemon, or have it serve a file; an exit status."""
        from umaserve.cli.admin import load

        try:
            with client_of(self._socket) as client:
                models = client.info().get("models", ())
            if any(name in (each["id"], *each["aliases"]) for each in models):
                self.settings["model"] = name
                return self.tell_model()
            status = load([*(["--socket", self._socket] if self._socket else []), "--", name])
            if status == EXIT_OK:
                self.settings["model"] = None  # it is the default one now
            self.meet_model()
        except UmaError as error:
            return failure(error)
        return status

    def ask(self, question: str) -> int:
        """Print the answer as it comes, and keep both; returns an exit status."""
        self._attempt = 0
        pictures, self.pictures = self.pictures, []
        return self._ask(Question.showing(question, pictures) if pictures else question)

    def retry(self) -> int:
        """Ask the last question again, instead of the answer that it has; an exit status."""
        question = self._unanswered
        if question is not None:
            return self._ask(question)
        old = self.conversation.pop()
        if old is None:
            say("(there is no question yet)")
            return EXIT_OK
        self._attempt += 1  # with a seed, the same answer would come again
        status = self._ask(old.question)
        if self._unanswered is not None:  # the old answer is better than none
            self.conversation.turns.append(old)
            self._unanswered = None
        return status

    def undo(self) -> str | None:
        """Take back the last question, with its answer if it has any; returns it."""
        question, self._unanswered = self._unanswered, None
        self._last = None
        if question is None:
            turn = self.conversation.pop()
            question = turn.question if turn is not None else None
        return question

    def stats(self) -> str:
        """Return lines on the cost of the last answer, and on how full the context is."""
        if self._last is None:
            return "(there is no answer to tell of)"
        usage, timings = self._last.usage, self._last.timings
        parts = [f"{usage.completion_tokens} tokens"]
        if timings.total_ms is not None and timings.ttft_ms is not None:
            decode_ms = timings.total_ms - timings.ttft_ms
            if usage.completion_tokens > 1 and decode_ms > 0:
                parts.append(f"{(usage.completion_tokens - 1) / decode_ms * 1e3:.1f} a second")
            parts.append(f"the first after {timings.ttft_ms:.0f} ms")
        used = usage.prompt_tokens + usage.completion_tokens
        of = f" of {self._n_ctx}" if self._n_ctx else ""
        turns, left_out = turns_of(len(self.conversation.turns)), self.conversation.first
        return (
            f"model         {self.model or '-'}\n"
            f"last answer   {', '.join(parts)}\n"
            f"conversation  {turns}{f' ({left_out} left out)' if left_out else ''}, "
            f"{used}{of} tokens of the context"
        )

    # --- inside ------------------------------------------------------------------------------

    def _ask(self, question: str) -> int:
        self._unanswered = question
        self._make_room()
        attempt = 1
        while True:
            parts: list[str] = []
            try:
                status = self._answer(question, parts)
            except KeyboardInterrupt:
                say("(cut short)")
                status = EXIT_OK
            except ServerError as error:
                if error.code in TOO_LONG and self._leave_out():
                    continue
                return self._failed(error)
            except ConnectionFailed as error:
                if attempt == ATTEMPTS or isinstance(error, OtherUser):
                    return self._failed(error)
                attempt += 1
                if parts:
                    say("(the daemon went away in the middle of this answer; asking again)")
                continue
            except UmaError as error:
                return self._failed(error)
            answer = "".join(parts)
            if answer.strip():
                self.conversation.turns.append(Turn(question, answer))
                self._unanswered = None
            return status

    def _answer(self, question: str, parts: list[str]) -> int:
        """Print an answer, and collect it in ``parts``."""
        settings = dict(self.settings)
        if settings.get("seed") is not None:
            settings["seed"] += self._attempt
        with _whole_lines(parts), client_of(self._socket) as client:
            self._learn(model_once_loaded(client, self.settings.get("model")))
            messages = self.conversation.messages(question)
            with (
                client.generate(messages=messages, session=self._session, **settings) as stream,
                Reading(self._socket, stream.id) as reading,
            ):
                write = _writer()
                for event in stream:
                    reading.over()
                    if event.text:
                        parts.append(event.text)
                        write(event.text)
        self._last = stream.eos
        if stream.eos is None or stream.eos.reason == "error":
            say("error: the server ended the answer without saying why; see its log")
            return EXIT_SERVER
        if stream.eos.reason == "cancel":
            say("error: the answer is not whole: somebody else cancelled it")
            return EXIT_SERVER
        if stream.eos.reason == "length":
            say(self._why_cut(stream.eos.usage.completion_tokens))
        elif not "".join(parts).strip():
            say("(the model ended its answer before it began; /retry asks again)")
        return EXIT_OK

    def _learn(self, info: dict[str, Any]) -> None:
        model = info.get("model") or {}
        name = str(model.get("name") or "")
        if name and self.model and name != self.model:
            say(f"(the model is {name} now)")
            self.conversation.first = 0  # it may hold more
        if name != self.model and model.get("note"):
            say(f"({name} is {model['note']})")
        self.model = name or self.model
        bounds = [int(model[key]) for key in ("n_ctx", "n_ctx_train") if model.get(key)]
        self._n_ctx = min(bounds, default=0)
        self._most_tokens = int((info.get("limits") or {}).get("max_tokens") or 0)

    def _make_room(self) -> None:
        """Leave out old turns where the next answer might not fit any more."""
        if self._last is None or not self._n_ctx:
            return
        usage = self._last.usage
        if usage.prompt_tokens + usage.completion_tokens > FULL * self._n_ctx:
            self._last = None  # it has been seen to
            self._leave_out()

    def _leave_out(self) -> bool:
        count = self.conversation.leave_out_oldest()
        if count:
            oldest = "oldest turn is" if count == 1 else f"oldest {count} turns are"
            say(f"(the context is full: the {oldest} left out from now on; /save keeps all)")
        return count > 0

    def _why_cut(self, n_tokens: int) -> str:
        asked = self.settings.get("max_tokens")
        if asked and n_tokens >= asked:
            why = f"--max-tokens {asked} is reached"
        elif self._most_tokens and n_tokens >= self._most_tokens:
            why = f"the daemon's --max-tokens {self._most_tokens} is reached"
        else:
            why = f"the context{f' of {self._n_ctx} tokens' if self._n_ctx else ''} is full"
        return f'(cut: {why}; "go on" asks for the rest)'

    def _failed(self, error: UmaError) -> int:
        if self._gives_up and isinstance(error, ConnectionFailed):
            raise error
        status = failure(error)
        if isinstance(error, ServerError) and error.code in TOO_LONG:
            say("(this message is too long by itself; shorten it, or /undo it)")
        elif not self._gives_up:
            say("(your message is kept: /retry asks again)")
        return status


def _writer() -> Callable[[str], None]:
    """Return a function that writes an answer; on a terminal, lines end between words."""
    if not sys.stdout.isatty():
        return partial(show, end="")
    from umaserve.cli.chat.wrap import Wrapper

    wrapper = Wrapper(shutil.get_terminal_size().columns)

    def write(text: str) -> None:
        print(wrapper.feed(for_reader(text, sys.stdout)), end="", flush=True)

    return write


def turns_of(count: int) -> str:
    """Their number in words."""
    return "1 turn" if count == 1 else f"{count} turns"


@contextmanager
def _whole_lines(parts: list[str]) -> Iterator[None]:
    """End the last line of an answer, however the answer ends."""
    try:
        yield
    finally:
        if parts and not parts[-1].endswith("\n"):
            print(flush=True)
