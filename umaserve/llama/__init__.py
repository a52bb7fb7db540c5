"""libllama for the engine: the build to load, the binding, and thin helpers over it.

Importing this package loads no library.
"""

from __future__ import annotations

from .context import Context, devices
from .errors import BindingMismatch, ContextError, LlamaError, ModelLoadError, NotBuilt
from .library import Library, load
from .memory import memory_needed
from .model import Model

__all__ = [
    "BindingMismatch",
    "Context",
    "ContextError",
    "Library",
    "LlamaError",
    "Model",
    "ModelLoadError",
    "NotBuilt",
    "devices",
    "load",
    "memory_needed",
]
