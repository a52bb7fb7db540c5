"""How compiled functions are compiled."""

from __future__ import annotations

from typing import Any

# of functions that only compiled code calls: no wrapper for Python, which takes most of the time
# that compiling a small function with many arrays takes
INNER: dict[str, Any] = {"nogil": True, "cache": True, "no_cpython_wrapper": True}

# of a phase of one larger function, its only caller: numba puts both together before it looks at
# types.  LLVM would optimise what a phase calls once for the phase and once more for its caller.
PHASE: dict[str, Any] = {"nogil": True, "cache": True, "inline": "always"}
