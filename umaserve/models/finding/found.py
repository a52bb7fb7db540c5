"""A model's file that another tool keeps on this machine, and small files that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from umaserve.system.regular_file import open_regular

MOST_BYTES = 4 << 20  # of a manifest, a pointer or a file of settings


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


def read_text(path: Path) -> str:
    """The text of a file, if it is a regular one of at most `MOST_BYTES`.

    Raises ``OSError`` and ``ValueError``.
    """
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return data.decode()
