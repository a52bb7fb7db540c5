"""A short list of the models of this machine, and which of them somebody wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from umaserve.cli.parts.common import answer, in_a_line, say
from umaserve.models import chosen
from umaserve.models.finding.places import Places, find_all
from umaserve.models.finding.reference import DEMO, hub_reference, lasting
from umaserve.models.needs import gib
from umaserve.models.suggested import for_memory, suggested

from .listing import Listed, fits_text, kind_text, look, speed_text
from .pull import fetched
from .suggest import HOW, listing, memory_here

MOST = 9


def ask_which(where: Places, kv: tuple[str, str], tell: Callable[[str], None]) -> str:
    """Show a list, and keep what is chosen; its path, empty for the demonstration.

    Where there is no model to choose, those that could be fetched are offered.  ``kv``: ggml's
    names of the KV types.
    """
    listed, _ = look(find_all(where), kv)
    usable = [row for row in listed if row.fits and not row.about.embeds]
    if not usable:
        tell(
            "none of the models here writes text and fits this machine; `umaserve models` says why"
            if listed
            else "there is no model on this machine but the demonstration"
        )
        return _fetch_one()
    usable.sort(key=lambda row: -os.path.getmtime(row.found.path))
    shown = usable[:MOST]
    say("models on this machine:")
    for number, row in enumerate(shown, 1):
        say(f"  {number}  {_line(row)}")
    if len(usable) > len(shown):
        say(f"     (and {len(usable) - len(shown)} more: `umaserve models`)")
    found = _choice(shown)
    if found is None:
        return ""
    name, path = found
    _keep(lasting(name, path))
    return path


def _fetch_one() -> str:
    """Offer models that fit; the path of the one that was fetched, and is kept as the choice.

    Enter is the demonstration, and is not kept: there may be models the next time.
    """
    offered = for_memory(*memory_here())
    say(listing())
    while True:
        typed = answer("which one to fetch? A name, or Enter for the demonstration model: ")
        if not typed:
            return ""
        named = suggested(typed)
        if named is None or named not in offered:
            say(f"there is no {in_a_line(typed)} in the list; name one of them, or Enter")
            continue
        _, path = fetched(hub_reference(named.reference), ask=True)
        if path:
            _keep(named.reference)
            return path


def _keep(name: str) -> None:
    try:
        chosen.choose(name)
    except OSError as error:
        say(f"umaserve: the choice could not be kept ({error.strerror or error})")
    else:
        say(f"umaserve: remembered; {HOW}")


def _choice(shown: Sequence[Listed]) -> tuple[str, str] | None:
    """A name and its path; None where the terminal ended instead, and nothing is to be kept."""
    while True:
        typed = answer("which one? A number, or Enter for the demonstration model: ")
        if typed is None:
            return None
        if not typed:
            return DEMO, ""
        if typed.isdecimal() and 1 <= int(typed) <= len(shown):
            found = shown[int(typed) - 1].found
            return found.name, found.path
        say(f"there is no {in_a_line(typed)} in the list; 1 to {len(shown)}, or Enter")


def _line(row: Listed) -> str:
    facts = row.about
    words = [gib(facts.bytes), facts.quantization, f"context {fits_text(row)}"]
    speed = speed_text(row)
    if fits_text(row) == "yes":
        words[2] = f"context {facts.n_ctx_train}" if facts.n_ctx_train else ""
    if speed != "-":
        words.append(f"{speed.removesuffix('/s')} tokens/s")
    return f"{in_a_line(row.found.name)}{kind_text(facts)}  ({', '.join(filter(None, words))})"
