"""Small files that other tools write: read only where they are regular files of a bounded size."""

from __future__ import annotations

from pathlib import Path

from umaserve.system.regular_file import open_regular

MOST_BYTES = 4 << 20  # of a manifest, a pointer or a file of settings


def read_text(path: Path) -> str:
    """The text of the file.  Raises ``OSError`` and ``ValueError``."""
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return data.decode()
