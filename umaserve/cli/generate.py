"""``umaserve generate`` and ``uma-cli``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from umaserve.cli.common import (
    EXIT_OK,
    EXIT_SERVER,
    Parser,
    add_socket,
    client_of,
    failure,
    say,
    show,
)
from umaserve.client import Client, Eos, ServerError, Token

LOOK_S = 0.2  # while a model loads


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
        "private goes to standard input (the default, less one newline at its end)",
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
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate")
    parser.add_argument("--temp", type=float, metavar="X", help="temperature; 0 = greedy")
    parser.add_argument("--top-p", type=float, metavar="X", help="nucleus; 1 = off")
    parser.add_argument("--top-k", type=int, metavar="N", help="most likely tokens kept; 0 = off")
    parser.add_argument("--min-p", type=float, metavar="X", help="share of the best; 0 = off")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same answer")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    parser.add_argument("--no-stream", action="store_true", help="print only when all is there")
    parser.add_argument("--priority", choices=("interactive", "background"), help="the lane")
    parser.add_argument("--json", action="store_true", help="print one JSON event per line")
    add_socket(parser)
    return parser


def _prompt(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        say("(type the prompt; Ctrl-D on an empty line sends it)")
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    return text[:-1] if text.endswith("\n") else text


def _waits_for_model(client: Client) -> dict[str, Any]:
    """What ``info`` says of the model, once it is loaded; empty where none is."""
    said = False
    while True:
        info = client.info()
        if info.get("state") != "loading":
            return info.get("model") or {}
        if not said:
            say("(the model is loading)")
            said = True
        time.sleep(LOOK_S)


def _question(client: Client, prompt: str, options: Any) -> dict[str, Any]:
    """The prompt as the model wants it: as a conversation where it has a chat template."""
    system = [{"role": "system", "content": options.system}] if options.system else []
    if options.raw or not (system or _waits_for_model(client).get("chat_template")):
        return {"prompt": prompt}
    return {"messages": [*system, {"role": "user", "content": prompt}]}


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
    settings: Any = {
        "max_tokens": options.max_tokens,
        "temperature": options.temp,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop,
        "priority": options.priority,
        "stream": False if options.no_stream else None,
    }
    write = _JsonWriter(options.no_stream) if options.json else _TextWriter()
    with (
        client_of(options.socket) as client,
        client.generate(**_question(client, prompt, options), **settings) as stream,
    ):
        try:
            for event in stream:
                write(event)
        except ServerError as error:
            if options.json:
                _print_json({"event": "error", "code": error.code, "message": error.message})
            return failure(error)
    reason = stream.eos.reason if stream.eos else "error"
    if reason == "error":
        say("error: the server ended the request without saying why; see its log")
        return EXIT_SERVER
    if write.is_empty:
        say("(the model ended its answer before it began; another --seed, or --raw, may help)")
    return EXIT_OK


class _TextWriter:
    """Prints texts as they come, and ends the line on a terminal."""

    def __init__(self) -> None:
        self._ends_line = False
        self.is_empty = True

    def __call__(self, event: Token | Eos) -> None:
        if event.text:
            self.is_empty = False
            self._ends_line = event.text.endswith("\n")
            show(event.text, end="")
        if isinstance(event, Eos) and sys.stdout.isatty() and not self._ends_line:
            print()


def _print_json(event: dict[str, Any]) -> None:
    show(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


class _JsonWriter:
    """Prints an event a line, as the daemon sent it."""

    def __init__(self, is_whole: bool) -> None:
        self._is_whole = is_whole  # the text comes with the end
        self.is_empty = False  # whoever reads this sees it

    def __call__(self, event: Token | Eos) -> None:
        body: dict[str, Any] = event._asdict()
        id, kind = body.pop("id"), "token"
        if isinstance(event, Eos):
            body["usage"], body["timings"] = event.usage._asdict(), event.timings._asdict()
            kind = "eos"
            if not self._is_whole:
                del body["text"]
        fields = {key: value for key, value in body.items() if value is not None}
        _print_json({"id": id, "event": kind, **fields})
