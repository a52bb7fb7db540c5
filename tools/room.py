"""Whether the disks have room for what a first start fetches and builds.

    python -m tools.room BYTES FOLDER...

says which folder's disk has less free, and what to do: pip ends in a traceback where a disk is
full.  Standard library only, since it runs before there is a virtual environment.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence


def too_little(needed: int, folder: str) -> str:
    """What to tell of a disk that has less free; empty where there is room."""
    there = os.path.abspath(folder)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    free = shutil.disk_usage(there).free
    if free >= needed:
        return ""
    return (
        f"the disk of {there} is too full: {free / 1e9:.1f} GB are free, and this takes up to "
        f"{needed / 1e9:.1f} GB. Make room, then start again"
    )


def main(words: Sequence[str]) -> int:
    """1 where there is not enough room."""
    needed, *folders = words
    problems = list(filter(None, (too_little(int(needed), folder) for folder in folders)))
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
