"""``umaserve models``: the GGUF files that this machine already has, wherever tools keep them."""

from __future__ import annotations

import json
import os
import sys

from umaserve.cli.parts.common import EXIT_OK, EXIT_USAGE, Parser, in_a_line, say, show
from umaserve.client import Client, ConnectionFailed, ProtocolError, ServerError
from umaserve.config import ConfigError, add_flags, flag_values, load_config
from umaserve.models import chosen
from umaserve.models.finding.places import Places, find_all, places
from umaserve.models.finding.reference import DEMO, BadReference, NotHere, lasting, locate
from umaserve.models.needs import gib

from .estimate import Machine
from .listing import Listed, as_json, look, table
from .suggest import ANY_OTHER, listing

PLAIN_WIDTH = 200  # characters a line, where nobody's terminal says: names stay whole
LIVE_S = 2.0  # for a daemon to say what it has loaded
FLAGS = ("model_dir", "kv_type", "config")


def models(arguments: list[str]) -> int:
    """List them, or choose the one that is served when none is named."""
    parser = Parser(
        prog="umaserve models",
        description="List the models that other tools keep on this machine: Hugging Face's cache, "
        "llama.cpp's, Ollama's, LM Studio's, and --model-dir.",
        epilog="`umaserve --model NAME` serves one.  `umaserve pull` fetches others.",
    )
    parser.add_argument("--json", action="store_true", help="all, as one JSON array")
    parser.add_argument(
        "--use",
        metavar="NAME",
        help="serve this one from now on when none is named; demo is the bundled model",
    )
    add_flags(parser, FLAGS)
    options = parser.parse_args(arguments)
    try:
        config = load_config(flag_values(options))
    except ConfigError as error:
        say(f"umaserve: {error}")
        return EXIT_USAGE
    where = places(model_dir=config.model_dir)
    if options.use is not None:
        return use(options.use, where)
    listed, machine = look(find_all(where), (config.kv_type_k, config.kv_type_v))
    if options.json:
        show(json.dumps([as_json(row, machine) for row in listed], ensure_ascii=False))
    else:
        _show(listed, machine, where)
    return EXIT_OK


def use(name: str, where: Places) -> int:
    """Remember a choice, once it is known to lead somewhere."""
    gone = why_gone(name, where)
    if gone:
        say(f"umaserve: {gone}")
        return EXIT_USAGE
    path = locate(name, where)
    kept = lasting(name, path)
    chosen.choose(kept)
    show(f"`umaserve` serves {in_a_line(kept)} from now on, unless a model is named")
    return EXIT_OK


def why_gone(name: str, where: Places) -> str:
    """Why that model cannot be served now; empty where its file is there."""
    try:
        path = locate(name, where)
    except (NotHere, BadReference) as error:
        return str(error)
    if path and not os.path.exists(path):
        return f"{name} does not exist; `umaserve models` lists what is there"
    return ""


def _show(listed: list[Listed], machine: Machine, where: Places) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    good = [row for row in listed if row.estimate is not None]
    if good:
        console.print(table(good))
        console.print(f"\n{_legend(good, machine)}")
    bad = [row for row in listed if row.estimate is None]
    if bad:
        console.print(("\n" if good else "") + "these cannot be served:", style="bold")
        for row in bad:
            text = f"  {in_a_line(row.found.name)}: {in_a_line(row.problem)}"
            console.print(text, soft_wrap=True)
    if not listed:
        console.print("no model was found.", listing(), ANY_OTHER, sep="\n", soft_wrap=True)
        console.print("looked in:")
        for folder in where.all():
            there = "" if folder.is_dir() else " (not there)"
            console.print(f"  {in_a_line(str(folder))}{there}", soft_wrap=True)
    named = chosen.chosen()
    if named:
        what = "the demonstration model" if named == DEMO else in_a_line(named)
        console.print(f"`umaserve` serves {what} when none is named.", soft_wrap=True)
        gone = why_gone(named, where)
        if gone:
            console.print(f"It is gone: {in_a_line(gone)}", soft_wrap=True)
    loaded = _loaded()
    if loaded:
        console.print(loaded, soft_wrap=True)


def _loaded() -> str:
    """Return the running daemon's model, and what is off for it; "" without either."""
    try:
        with Client(timeout=LIVE_S) as client:
            model = client.info().get("model") or {}
    except (ConnectionFailed, ProtocolError, ServerError):
        return ""
    off = model.get("off")
    return f"{in_a_line(str(model.get('name')))} is loaded; {off}." if off else ""


def _legend(good: list[Listed], machine: Machine) -> str:
    of = "graphics memory" if machine.graphics else "memory"
    text = (
        f"fits: how much context there is room for in {gib(machine.memory)} of {of}. "
        "tokens: a second, of one stream"
    )
    if any(row.estimate and row.estimate.rate is None for row in good):
        text += "; - until a daemon served a large model here"
    if any(row.estimate and row.estimate.measured and not row.estimate.sure for row in good):
        text += "; at least so many until a second run confirms it"
    if any(row.about.is_base for row in good):
        text += ". A base model continues text, and was not made for conversations"
    return text + "."
