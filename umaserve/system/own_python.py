"""Command lines of Python processes that import nothing from the folder in which they start.

``python -m`` and ``python -c`` look there first.  A daemon that is started in ``/tmp`` would run
what another user has put there under the name of a module.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


def run_module(name: str) -> list[str]:
    """As ``python -m NAME``; modules of this project are those that this process has."""
    # The name comes first, for those who look for the process with `ps`.
    # The entry of the current folder is empty; those of PYTHONPATH are absolute by now
    code = (
        f"{name!r}; import sys; sys.path[:] = [{_ROOT!r}, *filter(None, sys.path)]; import runpy; "
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]


def run_code(code: str) -> list[str]:
    """As ``python -c CODE``, for code that needs the standard library alone."""
    return [sys.executable, "-I", "-c", code]
