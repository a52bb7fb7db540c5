"""``umaserve pull``: fetch a model from a hub, and go on where an earlier try stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Parser,
    answer,
    in_a_line,
    say,
    show,
)
from umaserve.models.finding.reference import FORM, BadReference, HubReference, hub_reference
from umaserve.models.needs import ENGINE_BYTES, gib
from umaserve.models.suggested import short_name_of

from .suggest import ANY_OTHER, listing, memory_here

if TYPE_CHECKING:
    from umaserve.models.fetching.hub import HubFile, Plan, Progress

CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
EVERY_S = 10.0  # between two lines, where nobody sees a bar


def pull(arguments: list[str]) -> int:
    """The command."""
    parser = Parser(
        prog="umaserve pull",
        description="Fetch a model into Hugging Face's cache, where llama.cpp and other tools find "
        "it too.  The next pull continues an interrupted one.",
        epilog="HF_TOKEN: for private and gated repositories; HF_ENDPOINT: another hub; HF_HOME: "
        "where the cache is",
    )
    parser.add_argument(
        "model", metavar="REF", nargs="?", help=f"a short name, or {FORM}; without REF, short "
        "names of models that fit this machine are listed",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.model is None:
        say(f"{listing()}\n{ANY_OTHER}")
        return EXIT_USAGE
    try:
        reference = hub_reference(options.model)
    except BadReference as error:
        say(f"umaserve: {error}")
        return EXIT_USAGE
    status, path = fetched(reference)
    if path:
        show(path)
    return status


def fetched(reference: HubReference, ask: bool = False) -> tuple[int, str]:
    """An exit status, and the path of the model, empty where it was not fetched.

    ``ask``: a person is told what the download takes, and may say no.
    """
    # nobody but the hub itself is told what is fetched here
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for name in CACHES:
        if not os.environ.get(name):  # huggingface_hub would take an empty one for this folder
            os.environ.pop(name, None)
    try:
        from huggingface_hub.utils import logging
    except ModuleNotFoundError as error:
        say(f"umaserve: {error.name} is not installed; `umaserve doctor` says what to do")
        return EXIT_CANNOT_SERVE, ""

    from umaserve.models.fetching import hub
    from umaserve.models.fetching.problems import PullError

    logging.set_verbosity_error()
    name = in_a_line(short_name_of(str(reference)))
    try:
        wanted = hub.plan(reference)
        say(_what_it_takes(wanted))
        if ask and not _agreed():
            return EXIT_CANNOT_SERVE, ""
        with _progress(wanted) as told:
            path = hub.fetch(wanted, told)
    except PullError as error:
        say(f"umaserve: {in_a_line(str(error))}")
        return EXIT_CANNOT_SERVE, ""
    except KeyboardInterrupt:
        say(f"\nstopped; umaserve pull {name} goes on from here")
        return EXIT_INTERRUPTED, ""
    say(f"`umaserve --model {name}` serves it; `umaserve load {name}` where a daemon runs")
    return EXIT_OK, path


def _agreed() -> bool:
    said = answer("Fetch it now? [Y/n] ")
    return said is not None and said.lower() in ("", "y", "yes")


def _what_it_takes(wanted: Plan) -> str:
    from umaserve.models.fetching import hub

    names = ", ".join(file.name for file in wanted.files)
    size = sum(file.bytes for file in wanted.files)
    text = f"{wanted.repository}: {in_a_line(names)} ({gib(size)})"
    if hub.is_here(wanted):
        return f"{text}; it is here already"
    missing, folder, free = hub.to_come(wanted)
    memory, graphics = memory_here()
    needs, of = size + ENGINE_BYTES, "graphics memory" if graphics else "memory"
    return (
        f"{text}\n{gib(missing)} to fetch into {in_a_line(str(folder))}, which has {gib(free)} "
        f"free\nserving it takes at least {gib(needs)}; this machine has {gib(memory)} of {of}"
        f"{', which is too little' if needs > memory else ''}"
    )


@contextlib.contextmanager
def _progress(wanted: Plan) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        total = sum(file.bytes for file in wanted.files)
        tasks = {"fetching": bars.add_task("fetching", total=total)}
        done: dict[tuple[str, str], int] = {}

        def tell(file: HubFile, stage: str, so_far: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            done[stage, file.name] = so_far
            bars.update(
                tasks[stage], completed=sum(n for (of, _), n in done.items() if of == stage)
            )

        yield tell


def _lines() -> Progress:
    said_s = time.monotonic()

    def tell(file: HubFile, stage: str, so_far: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= EVERY_S:
            said_s = time.monotonic()
            say(f"{stage} {in_a_line(file.name)}: {so_far / max(file.bytes, 1):.0%}")

    return tell
