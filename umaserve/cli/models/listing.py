"""The models of this machine, looked at, and as lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from umaserve.cli.parts.common import in_a_line, say
from umaserve.models.about import About, about, billions
from umaserve.models.finding import hugging_face, ollama
from umaserve.models.finding.found import Found
from umaserve.models.needs import gib, total_bytes
from umaserve.texts import printable

from .estimate import Estimate, Machine, estimate, this_machine

if TYPE_CHECKING:
    from rich.table import Table

MANY = 8  # files take about a second to look at


@dataclass(frozen=True)
class Listed:
    """``estimate`` is None for what cannot be served."""

    found: Found
    about: About
    estimate: Estimate | None

    @property
    def problem(self) -> str:
        problem = self.found.problem or self.about.problem
        return problem + _command(self.found) if problem.endswith("fetch it again") else problem

    @property
    def fits(self) -> bool:
        return self.estimate is not None and self.estimate.context > 0


def _command(found: Found) -> str:
    """How a file that is not whole is fetched again, where a command does so."""
    if found.name.startswith(hugging_face.SCHEME):
        return f": umaserve pull {found.name}"
    if found.name.startswith(ollama.SCHEME):
        return f": ollama pull {found.name.removeprefix(ollama.SCHEME)}"
    return ""


def look(everything: Sequence[Found], kv: tuple[str, str]) -> tuple[list[Listed], Machine]:
    """Reads each file's header.  ``kv``: types of K and V."""
    with _progress(len(everything)) as step:
        machine = this_machine(total_bytes()) if everything else Machine(total_bytes(), None)
        listed = []
        for found in everything:
            facts, info = about(found.path)
            usable = info is not None and not (found.problem or facts.problem)
            likely = estimate(info, facts.n_ctx_train, kv, machine) if usable and info else None
            listed.append(Listed(found, facts, likely))
            step()
    return listed, machine


@contextmanager
def _progress(count: int) -> Iterator[Any]:
    if not sys.stderr.isatty():
        if count > MANY:
            say(f"(looking at {count} models)")
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("looking at models"), BarColumn(), TextColumn("{task.completed}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda: bar.advance(task)


def as_json(listed: Listed, machine: Machine) -> dict[str, Any]:
    """Bytes, tokens and tokens per second; null for what nobody knows."""
    facts, likely = listed.about, listed.estimate
    return {
        "name": printable(listed.found.name),
        "path": printable(listed.found.path),
        "tool": listed.found.tool,
        "also": [printable(name) for name in listed.found.also],
        "problem": printable(listed.problem) or None,
        "bytes": facts.bytes,
        "architecture": facts.architecture or None,
        "parameters": facts.parameters or None,
        "quantization": facts.quantization or None,
        "n_ctx_train": facts.n_ctx_train or None,
        "embeddings": facts.embeds and not facts.ranks,
        "reranking": facts.ranks,
        "base_model": facts.is_base,
        "fits": listed.fits if likely else None,
        "context_fits": likely.context if likely else None,
        "needs_bytes": likely.needs if likely else None,
        "memory_bytes": machine.memory,
        "memory_is_graphics": machine.graphics,
        "tokens_per_s": round(likely.rate, 1) if likely and likely.rate else None,
        "tokens_per_s_measured": likely.measured if likely and likely.rate else None,
        "tokens_per_s_runs": likely.runs if likely and likely.rate else None,
        "tokens_per_s_sure": likely.sure if likely and likely.rate else None,
    }


def fits_text(listed: Listed) -> str:
    """``yes``, ``to 8192``, ``no``: how much of the trained context this machine has room for."""
    likely = listed.estimate
    if likely is None or not likely.context:
        return "no"
    whole = likely.context >= listed.about.n_ctx_train
    return "yes" if whole else f"to {likely.context}"


def kind_text(facts: About) -> str:
    """Return the note behind the name of a model that is not made for conversations; else ""."""
    if facts.ranks:
        return " (a reranker)"
    return " (embeddings)" if facts.embeds else " (a base model)" if facts.is_base else ""


def speed_text(listed: Listed) -> str:
    likely = listed.estimate
    if likely is None or likely.rate is None or listed.about.embeds or not likely.context:
        return "-"
    number = f"{likely.rate:.0f}" if likely.rate >= 10 else f"{likely.rate:.1f}"
    if likely.measured:
        return f"{number}/s" if likely.sure else f"at least {number}/s"
    return f"about {number}/s"


def table(rows: Sequence[Listed]) -> Table:
    """Return a table of models that can be served.  Names come last, so that they stay whole."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("size", "params", "quant", "context", "fits", "tokens", "name"):
        right = title not in ("quant", "fits", "name")
        made.add_column(
            title, justify="right" if right else "left", no_wrap=title != "name", overflow="fold"
        )
    for row in rows:
        facts = row.about
        made.add_row(
            gib(facts.bytes), billions(facts.parameters) or "-", facts.quantization or "-",
            str(facts.n_ctx_train or "-"), fits_text(row), speed_text(row),
            in_a_line(row.found.name) + kind_text(facts),
        )  # fmt: skip
    return made
