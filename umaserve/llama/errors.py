"""Errors between umaserve and libllama. Every message is meant for a user."""

from __future__ import annotations


class LlamaError(Exception):
    """Base of the errors of `umaserve.llama`."""


class NotBuilt(LlamaError):
    """There is no libllama for the backend asked for."""


class BindingMismatch(LlamaError):
    """The compiled binding and the library that it found do not belong together."""


class ModelLoadError(LlamaError):
    """libllama could not load a model."""


class ContextError(LlamaError):
    """libllama could not make a context."""
