"""``umaserve bench``: whether this machine keeps the promise, in about a minute."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from umaserve.cli.parts.common import EXIT_OK, EXIT_SERVER, Parser, add_socket, say
from umaserve.system.own_file import NotOurs, check_own, write_own
from umaserve.visible import for_reader

if TYPE_CHECKING:
    from umaserve.bench.progress import Stages
    from umaserve.bench.result import Result

EXIT_MISSED = 4

EPILOG = """\
Run it on a machine that does nothing else.  Without --model, it measures the
daemon at the socket; its clients only notice the load.  Where none runs, and
with --model or --fresh, it starts a daemon and ends it again (its other
settings come from the environment and UMA_CONFIG, as for `serve`).

exit status: 0 the cap was held beside background jobs, 4 it was missed, 2
there is no verdict (the daemon failed, the benchmark could not be run, or
others used the cores or the daemon meanwhile), 3 protocol error, 130
interrupted
"""


def _number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return value

    return parse


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve bench",
        description="Measure interactive streams alone, then beside long background jobs, and say\n"
        "whether the latency cap was held.  Then measure the same without lanes, and the\n"
        "waits of five programs at once, over those of three of them alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start a daemon for this run even if one runs"
    )
    parser.add_argument(
        "--model", metavar="FILE", help="start a daemon for this run, with this GGUF file"
    )
    parser.add_argument(
        "--seconds", type=_number(float, 0.5, 3600), default=7.0, metavar="S",
        help="seconds of each of the three phases (7); the run takes about a minute",
    )  # fmt: skip
    parser.add_argument(
        "--interactive", type=_number(int, 1, 256), default=3, metavar="N",
        help="streams whose time between tokens counts (3)",
    )  # fmt: skip
    parser.add_argument(
        "--background", type=_number(int, 1, 256), default=1, metavar="N",
        help="jobs that send one long prompt after the other (1)",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-words", type=_number(int, 16, 100_000), default=900, metavar="N",
        help="words of a long prompt (900, or as many as fit a quarter of the context)",
    )  # fmt: skip
    parser.add_argument(
        "--cap", type=_number(float, 1, 100), metavar="X",
        help="the cap to judge by, and that of a daemon started for this run (the daemon's)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=_number(int, 0, 2**31), default=1, metavar="N", help="seed of prompts (1)"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html",
        help="write a page with charts, and the charts as FILE-*.svg beside it",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE",
        help="write a line a token: session_id, token_idx, ts_ms, is_interactive",
    )  # fmt: skip
    add_socket(parser)
    return parser


def _writable(path: Path) -> str | None:
    """Why a file cannot be written there; ``None`` if it can."""
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist; create it"
    if path.is_dir():
        return f"{path} is a folder; name a file in it"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return f"{path} cannot be written; name another file"
    try:
        check_own(str(path))
    except NotOurs as error:
        return f"{path} is not written: {error.strerror}"
    return None


def bench(arguments: list[str]) -> int:
    """The command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    fresh = options.fresh or options.model is not None
    if fresh and options.socket:
        flag = "--fresh" if options.fresh else "--model"
        parser.error(f"{flag} starts a daemon of its own, --socket names one that runs: give one")
    for path in (options.report, options.json, options.csv):
        why = _writable(path) if path else None
        if why:
            parser.error(why)

    from umaserve.bench import BenchError
    from umaserve.bench.progress import Stages
    from umaserve.bench.run import Settings, run
    from umaserve.bench.target import leaving_on_signals
    from umaserve.client.connect import socket_path

    settings = Settings(
        socket=socket_path(options.socket),
        fresh=fresh,
        model=os.path.abspath(os.path.expanduser(options.model)) if options.model else None,
        seconds=options.seconds,
        interactive=options.interactive,
        background=options.background,
        prompt_words=options.prompt_words,
        cap=options.cap,
        seed=options.seed,
        command=shlex.join(["umaserve", "bench", *arguments]),
    )

    try:
        with leaving_on_signals(), Stages() as stages:
            result = run(settings, stages, say)
            written = _write(result, options, stages)
    except (BenchError, OSError) as error:
        say(f"umaserve bench: {error}")
        return EXIT_SERVER
    _show(result, written)
    verdict = result.verdict
    if verdict is None or not (verdict.held or verdict.missed):
        return EXIT_SERVER
    return EXIT_OK if verdict.held else EXIT_MISSED


def _write(result: Result, options: argparse.Namespace, stages: Stages) -> list[Path]:
    from umaserve.bench.timeline import to_csv

    written = []
    if options.json:
        text = json.dumps(result.to_json(), ensure_ascii=False, indent=1)
        write_own(options.json, (text + "\n").encode())
        written.append(options.json)
    if options.csv:
        write_own(options.csv, to_csv(result.answers, result.origin_s).encode())
        written.append(options.csv)
    if options.report:
        from umaserve.bench.report.page import write_report

        stages.stage("drawing the report")
        written += write_report(result, options.report)
        stages.ended(str(options.report))
    return written


def _show(result: Result, written: list[Path]) -> None:
    from rich.console import Console
    from rich.text import Text

    from umaserve.bench.report.table import short_text, text, unlabelled_text, verdict_text

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    console.print()
    for verdict, sentence in (
        (result.verdict, verdict_text(result)),
        (result.pace, unlabelled_text(result)),
    ):
        colour = "yellow"
        if verdict is not None:
            colour = "green" if verdict.held else "red" if verdict.missed else "yellow"
        console.print(Text(sentence, f"bold {colour}"))
    for note in result.notes:
        console.print(Text(f"note: {for_reader(note, sys.stdout)}", "yellow"))
    console.print()
    console.print(Text(for_reader(text(result), sys.stdout)))
    console.print()
    console.print(short_text(result))
    if written:
        names = for_reader(" ".join(map(str, written)), sys.stdout)
        console.print(Text(f"written: {names}", overflow="fold"))
