"""How compiled functions are compiled."""

from __future__ import annotations

from typing import Any

# For functions that only compiled code calls.  They get no wrapper for Python: it takes most of the
# time of compiling a small function with many arrays.
INNER: dict[str, Any] = {"nogil": True, "cache": True, "no_cpython_wrapper": True}

# of a phase of one larger function, its only caller: numba puts both together before it looks at
# types.  LLVM would optimise what a phase calls once for the phase and once more for its caller.
PHASE: dict[str, Any] = {"nogil": True, "cache": True, "inline": "always"}
