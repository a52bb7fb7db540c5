"""A model's file that another tool keeps on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """``name`` is a reference that ``--model`` takes, ``path`` the file (a split model's first).

    ``problem``: why it cannot be served, where its place tells; ``also``: its other names.
    """

    name: str
    path: str
    tool: str
    problem: str = ""
    also: tuple[str, ...] = ()
