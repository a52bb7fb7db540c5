"""The models that this machine could fetch, as lines for people."""

from __future__ import annotations

from umaserve.models.needs import gib, total_bytes
from umaserve.models.suggested import Suggested, for_memory, gb

from .graphics import graphics_bytes

HOW = "`umaserve models` lists others, and `umaserve models --use NAME` serves one from now on"
ANY_OTHER = "any other GGUF model of https://huggingface.co: umaserve pull hf:OWNER/REPO"


def memory_here() -> tuple[int, bool]:
    """Bytes that a model may use on this machine, and whether they are of graphics cards."""
    cards = graphics_bytes()
    return (cards, True) if cards else (total_bytes(), False)


def listing() -> str:
    """Several lines: a heading, and a line for each model that fits."""
    memory, graphics = memory_here()
    rows = [_row(each) for each in for_memory(memory, graphics)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    of = "graphics memory" if graphics else "memory"
    return "\n".join(
        [f"models for the {gib(memory)} of {of} here; `umaserve pull NAME` fetches one:"]
        + [f"  {line}" for line in lines]
    )


def sentence() -> str:
    """Name the models that fit in a line, for a daemon that serves the demonstration."""
    names = ", ".join(f"{each.name} ({gb(each.size)})" for each in for_memory(*memory_here()))
    return f"real models for this machine: {names}; `umaserve pull NAME` fetches one"


def _row(each: Suggested) -> tuple[str, ...]:
    tools = "tools" if each.tools else "no tools"
    return each.name, gb(each.size), each.licence, each.template, tools, each.good_for
