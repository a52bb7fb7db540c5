"""libllama for the engine: the build to load, the binding, and thin helpers over it.

Importing this package loads nothing: names are looked up when they are first used. So
`builds` stays cheap for those who never load a library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Context, devices
    from .errors import (
        BindingMismatch,
        ContextError,
        LlamaError,
        ModelLoadError,
        NotBuilt,
    )
    from .library import Library, load
    from .memory import MemoryNeed, memory_needed
    from .model import Model

_HOME = {
    "Context": "context",
    "devices": "context",
    "BindingMismatch": "errors",
    "ContextError": "errors",
    "LlamaError": "errors",
    "ModelLoadError": "errors",
    "NotBuilt": "errors",
    "Library": "library",
    "load": "library",
    "MemoryNeed": "memory",
    "memory_needed": "memory",
    "Model": "model",
}

__all__ = [
    "BindingMismatch",
    "Context",
    "ContextError",
    "Library",
    "LlamaError",
    "MemoryNeed",
    "Model",
    "ModelLoadError",
    "NotBuilt",
    "devices",
    "load",
    "memory_needed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
