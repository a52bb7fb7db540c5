"""``umaserve generate`` and ``uma-cli``: one prompt, one answer."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from typing import Any

from umaserve.cli.parts.common import (
    EXIT_OK,
    EXIT_SERVER,
    Parser,
    add_socket,
    client_of,
    failure,
    model_once_loaded,
    say,
    show,
)
from umaserve.cli.parts.pictures import picture_parts
from umaserve.cli.parts.reading import Reading
from umaserve.client import Client, Eos, ServerError, Token

RAW_TOKENS = 256  # of a completion, where nobody says how many
MUTE_S = 1.0  # without a byte on standard input, until the person is told


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Send one prompt and print the answer as it comes.  Standard output gets the "
        "text alone; a terminal gets control characters spelled out (\\u001b).",
        epilog="exit status: 0 success, 2 the server failed or is not there, 3 protocol error, "
        "130 interrupted (the request is cancelled on the server first)",
    )
    parser.add_argument("words", nargs="*", metavar="PROMPT", help="the prompt, as -p takes it")
    parser.add_argument(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="the prompt; every user of this machine can read it in the process list, so what is "
        "private goes to standard input (the default, less one newline at its end). With both, "
        "the input goes behind this text",
    )
    parser.add_argument(
        "--system",
        metavar="TEXT",
        help="what the model is told before the prompt; readable in the process list too",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="complete the prompt as it is; else a model that is made for conversations answers it",
    )
    parser.add_argument(
        "--image",
        action="append",
        metavar="FILE",
        default=[],
        help="a picture in front of the prompt, for a model that reads them; may be repeated",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"most tokens to generate (default: the daemon's limit; {RAW_TOKENS} where the prompt "
        "is completed)",
    )
    parser.add_argument("--temp", type=float, metavar="X", help="temperature; 0 = greedy")
    parser.add_argument("--top-p", type=float, metavar="X", help="nucleus; 1 = off")
    parser.add_argument("--top-k", type=int, metavar="N", help="most likely tokens kept; 0 = off")
    parser.add_argument("--min-p", type=float, metavar="X", help="share of the best; 0 = off")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same answer")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    parser.add_argument(
        "--no-speculate", action="store_true", help="let no tokens be drafted and verified"
    )
    parser.add_argument("--no-stream", action="store_true", help="print only when all is there")
    parser.add_argument("--priority", choices=("interactive", "background"), help="the lane")
    parser.add_argument("--model", metavar="NAME", help="a model that `umaserve ps` lists")
    parser.add_argument("--json", action="store_true", help="print one JSON event per line")
    add_socket(parser)
    return parser


def _prompt(given: str | None) -> str:
    """Return ``given``, followed by the text on standard input."""
    if given is not None and not _is_piped():
        return given
    if sys.stdin.isatty():
        say("(type the prompt; Ctrl-D on an empty line sends it)")
    elif given is not None:
        _tell_if_mute()
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    text = text[:-1] if text.endswith("\n") else text
    return "\n\n".join(part for part in (given, text) if part)


def _is_piped() -> bool:
    """Whether somebody sends a text to standard input: a pipe or a file, no terminal or device."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _tell_if_mute() -> None:
    """A pipe that nobody writes to looks like a daemon that does not answer."""
    if not select.select([sys.stdin], [], [], MUTE_S)[0]:
        say("(waiting for standard input, which goes behind the prompt; </dev/null leaves it out)")


def _question(
    client: Client, prompt: str, pictures: list[dict[str, str]], options: Any
) -> dict[str, Any]:
    """The prompt as the model wants it: as a conversation where it has a chat template.

    A text that is completed has no end of its own, so there is a number of tokens to it.
    """
    system = [{"role": "system", "content": options.system}] if options.system else []
    model = model_once_loaded(client, options.model).get("model") or {}
    content = [*pictures, {"type": "text", "text": prompt}] if pictures else prompt
    if options.raw or not (system or pictures or model.get("chat_template")):
        most = RAW_TOKENS if options.max_tokens is None else options.max_tokens
        return {"prompt": content, "max_tokens": most}
    messages = [*system, {"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": options.max_tokens}


def generate(arguments: list[str], prog: str = "umaserve generate") -> int:
    """The command; returns the exit status."""
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    if options.raw and options.system:
        parser.error("--system is for conversations, and --raw for a text that is completed")
    if options.words and options.prompt is not None:
        parser.error(f"-p has the prompt already; what is {options.words[0]!r}?")
    prompt = _prompt(" ".join(options.words) if options.words else options.prompt)
    if not prompt:
        say("error: the prompt is empty; give one with -p TEXT or on standard input")
        return EXIT_SERVER
    pictures = picture_parts(options.image)
    if pictures is None:
        return EXIT_SERVER
    settings: Any = {
        "model": options.model,
        "temperature": options.temp,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop,
        "speculate": False if options.no_speculate else None,
        "priority": options.priority,
        "stream": False if options.no_stream else None,
    }
    write = _JsonWriter(options.no_stream) if options.json else _TextWriter()
    with (
        client_of(options.socket) as client,
        client.generate(**_question(client, prompt, pictures, options), **settings) as stream,
        Reading(options.socket, stream.id) as reading,
    ):
        try:
            for event in stream:
                reading.over()
                write(event)
        except ServerError as error:
            reading.over()
            if options.json:
                _print_json({"event": "error", "code": error.code, "message": error.message})
            write.end_line()
            return failure(error)
        finally:
            write.end_line()
    reason = stream.eos.reason if stream.eos else "error"
    if reason == "error":
        say("error: the server ended the request without saying why; see its log")
        return EXIT_SERVER
    if reason == "cancel":  # not by this command, which would not be here any more
        say("error: the answer is not whole: somebody else cancelled it")
        return EXIT_SERVER
    if write.is_empty:
        say("(the model ended its answer before it began; another --seed, or --raw, may help)")
    if stream.eos and reason == "length" and options.max_tokens is None and not options.json:
        n_tokens = stream.eos.usage.completion_tokens
        say(f"(cut after {n_tokens} tokens; --max-tokens N sets another number)")
    return EXIT_OK


class _TextWriter:
    """Prints texts as they come."""

    def __init__(self) -> None:
        self._in_line = False
        self.is_empty = True

    def __call__(self, event: Token | Eos) -> None:
        if event.text:
            self.is_empty = False
            self._in_line = not event.text.endswith("\n")
            show(event.text, end="")

    def end_line(self) -> None:
        """End an unfinished line on a terminal, so that later output has a line of its own."""
        if self._in_line and sys.stdout.isatty():
            print(flush=True)
        self._in_line = False


def _print_json(event: dict[str, Any]) -> None:
    show(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


class _JsonWriter:
    """Prints an event a line, as the daemon sent it."""

    def __init__(self, is_whole: bool) -> None:
        self._is_whole = is_whole  # the text comes with the end
        self.is_empty = False  # whoever reads this sees it

    def end_line(self) -> None:
        """Nothing to do: each event ends its line."""

    def __call__(self, event: Token | Eos) -> None:
        body: dict[str, Any] = event._asdict()
        id, kind = body.pop("id"), "token"
        if isinstance(event, Eos):
            body["usage"], body["timings"] = event.usage._asdict(), event.timings._asdict()
            if not event.usage.drafted_tokens:  # as the daemon leaves them out
                del body["usage"]["drafted_tokens"], body["usage"]["accepted_tokens"]
            kind = "eos"
            if not self._is_whole:
                del body["text"]
        fields = {key: value for key, value in body.items() if value is not None}
        _print_json({"id": id, "event": kind, **fields})
