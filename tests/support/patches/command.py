"""Commands forked from a process that has imported them; see `tests.support.forks`.

    python -m tests.support.patches.command --forks FD

None of these modules looks at variables or terminals when it is imported.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any

from tests.support.forks import answer
from umaserve.cli import COMMANDS, main

# huggingface_hub reads variables when it is imported, so it is none of these
MODULES = ("rich.console", "rich.table", "yaml")


def run(what: dict[str, Any], *fds: int) -> int:
    """Run ``python -m umaserve WORDS`` in this process."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(what["folder"])
    sys.argv = ["umaserve", *what["words"]]
    return main()


if __name__ == "__main__":
    asked = int(sys.argv[2])
    for module, _, _ in COMMANDS.values():
        import_module(f"umaserve.cli.{module}")
    for name in MODULES:
        import_module(name)
    gc.freeze()
    answer(asked, run)
