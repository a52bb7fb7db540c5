"""``umaserve cache``: what the prefix cache holds, for whom, and why the last prompts missed it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from umaserve.cli.parts.common import EXIT_OK, Parser, add_socket, in_a_line, show
from umaserve.client import Client

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_WIDTH = 120  # characters a line, where nobody's terminal says
LEAST = 8  # tokens that are worth to be copied


def cache(arguments: list[str]) -> int:
    """Print it once."""
    parser = Parser(
        prog="umaserve cache",
        description="What the prefix cache holds, for whom, and why the last prompts missed it.",
        epilog="It shows a few words of prompts, as far as these are not private.",
    )
    parser.add_argument("--json", action="store_true", help="all, as one JSON object")
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        report = client.cache()
    if options.json:
        show(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    return EXIT_OK


def _show(report: Mapping[str, Any]) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    console.print(summary(report))
    for title, table in (
        ("whose", _domains(report["domains"])),
        ("texts that are kept, the most used first", _texts(report["texts"])),
    ):
        if table.row_count:
            console.print(f"\n{title}", style="bold")
            console.print(table)
    if report["prompts"]:
        console.print("\nthe last prompts, the newest first", style="bold")
    for prompt in report["prompts"]:
        found = f"{prompt['cached_tokens']} of {prompt['prompt_tokens']} tokens copied"
        console.print(f"{found}: {in_a_line(prompt['app']) or 'a program'}, {_whose(prompt)}")
        for line in why(prompt):
            console.print(f"    {line}", soft_wrap=True)


def summary(report: Mapping[str, Any]) -> str:
    """Return a line on the contents of the cache."""
    if not report["on"]:
        return f"nothing is kept of prompts: {report['why_off']}"
    entries = report["entries"]
    held, most = _size(report["ram_bytes"]), _size(report["ram_max_bytes"])
    return f"{entries} {'entry takes' if entries == 1 else 'entries take'} {held} of {most} at most"


def why(prompt: Mapping[str, Any]) -> list[str]:
    """Lines that say how far a prompt was known, and where it left what is kept."""
    known, tokens, place = prompt["known_tokens"], prompt["prompt_tokens"], prompt["place"]
    if not prompt["asked"]:
        return ["its program wanted none of it"]
    if known >= tokens:
        lines = ["all of it was known"]
    elif place is None:
        lines = [f"private: {known} tokens were known"]
    elif not known:
        return [f"nothing that is kept begins with {_quoted(place['wanted'])}"]
    elif not place["kept"]:
        at = f"token {known}, {_quoted(place['before'])}"
        lines = [f"known up to {at}; goes on with {_quoted(place['wanted'])}"]
    else:
        lines = [
            f"left what is kept at token {known}, behind {_quoted(place['before'])}",
            f"  prompt: {_quoted(place['wanted'])}",
            f"  cache:  {_quoted(place['kept'])}",
        ]
    if prompt["cached_tokens"] < min(known, tokens - 1):
        short = "these are too few to be copied"
        if known >= LEAST:
            short = "the rest of these could not be copied, or is computed as fast"
        lines.append(short)
    return lines + ([f"hint: {prompt['hint']}"] if prompt["hint"] else [])


def _quoted(text: str) -> str:
    return f"“{in_a_line(text)}”"


def _whose(of: Mapping[str, Any]) -> str:
    key = of["key"] or "no key"
    return in_a_line(key if of["session"] is None else f"{key}, session {of['session']} alone")


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _domains(domains: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("API key", "entries", "tokens", "memory", "disk", right=(1, 2, 3, 4))
    for of in domains:
        sizes = _size(of["ram_bytes"]), _size(of["disk_bytes"]) if of["disk_bytes"] else "-"
        table.add_row(_whose(of), str(of["entries"]), str(of["tokens"]), *sizes)
    return table


def _texts(texts: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("tokens", "memory", "hits", "API key", "begins with", right=(0, 1, 2))
    for text in texts:
        numbers = str(text["tokens"]), _size(text["ram_bytes"]), str(text["hits"])
        table.add_row(*numbers, _whose(text), in_a_line(text["begins"]) or "(private)")
    return table


def _table(*titles: str, right: tuple[int, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        is_last = number == len(titles) - 1
        table.add_column(
            title,
            justify="right" if number in right else "left",
            overflow="fold",
            no_wrap=not is_last,
        )
    return table
