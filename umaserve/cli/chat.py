"""``umaserve chat``: a conversation whose history lives here and whose KV lives in the daemon."""

from __future__ import annotations

import os
import sys
from typing import Any

from umaserve.cli.common import EXIT_OK, Parser, add_socket, client_of, failure, say, show
from umaserve.client import Client, ServerError

HELP = """/system TEXT  set the system message and start over
/reset        forget the conversation
/exit         leave (so does Ctrl-D); Ctrl-C cuts an answer short"""


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve chat",
        description="Talk to the model.  Inside: /system TEXT, /reset, /exit, /help.",
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
    add_socket(parser)
    return parser


class _Conversation:
    def __init__(self, client: Client, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self._turn = 0
        self.start(None)

    def start(self, system: str | None) -> None:
        """Forget everything, with ``system`` as the new system message if there is one."""
        self.system = system
        self._messages: list[dict[str, str]] = []
        if system:
            self._messages.append({"role": "system", "content": system})
        self._turn += 1
        self._session = f"chat-{os.getpid()}-{self._turn}"

    def ask(self, text: str) -> int:
        """One turn: print the answer as it comes, keep both sides; returns an exit status."""
        question = {"role": "user", "content": text}
        parts: list[str] = []
        status = EXIT_OK
        stream = self._client.generate(
            messages=[*self._messages, question], session=self._session, **self._options
        )
        try:
            with stream:
                for event in stream:
                    if event.text:
                        parts.append(event.text)
                        show(event.text, end="")
        except KeyboardInterrupt:
            parts.append("\n")
            print(flush=True)
            say("(cut short)")
        except ServerError as error:
            status = failure(error)
            if error.code in ("E_LIMIT_001", "E_LIMIT_003"):
                say("the conversation has become too long; /reset starts a new one")
        answer = "".join(parts)
        if answer and not answer.endswith("\n"):
            print(flush=True)
        if answer.strip():
            self._messages += [question, {"role": "assistant", "content": answer}]
        return status


def _read(interactive: bool) -> str | None:
    """The next line; ``None`` when there is no more, an empty one after Ctrl-C."""
    try:
        return input("> " if interactive else "")
    except EOFError:
        if interactive:
            print()
        return None
    except KeyboardInterrupt:
        if not interactive:
            raise
        say("\n(/exit or Ctrl-D leaves)")
        return ""


def chat(arguments: list[str]) -> int:
    """The command; returns the exit status: that of the last turn."""
    options = _parser().parse_args(arguments)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    status = EXIT_OK
    with client_of(options.socket) as client:
        settings = {
            "max_tokens": options.max_tokens,
            "temperature": options.temp,
            "seed": options.seed,
            "priority": options.priority,
        }
        conversation = _Conversation(client, settings)
        conversation.start(options.system)
        if interactive:
            import readline  # noqa: F401  (line editing and history for input())

            say(f"{_model_name(client)}; /help lists what you can do")
        while (line := _read(interactive)) is not None:
            word, _, rest = line.strip().partition(" ")
            if not word:
                continue
            if word in ("/exit", "/quit"):
                break
            if word == "/help":
                say(HELP)
            elif word == "/reset":
                conversation.start(conversation.system)
                say("(forgotten)")
            elif word == "/system":
                conversation.start(rest.strip() or None)
                say("(new conversation)")
            elif word.startswith("/") and word[1:].isalpha():
                say(f"there is no {word}; /help lists what there is")
            else:
                status = conversation.ask(line)
    return status


def _model_name(client: Client) -> str:
    try:
        model = client.info().get("model") or {}
    except ServerError:
        model = {}
    return str(model.get("name") or "no model loaded")
