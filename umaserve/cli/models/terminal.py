"""Words with a person at the terminal, about the model that a daemon serves."""

from __future__ import annotations

import sys

HOW = "`umaserve models` lists others, and `umaserve models --use NAME` serves one from now on"


def answer(question: str) -> str | None:
    """A line without the spaces around it; None at the end of what is typed."""
    sys.stderr.write(question)
    sys.stderr.flush()
    typed = ""
    try:
        typed = sys.stdin.readline()
    finally:
        if not typed:  # Ctrl-C and Ctrl-D leave the cursor behind the question
            sys.stderr.write("\n")
    return typed.strip() if typed else None
