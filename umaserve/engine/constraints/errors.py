"""Error of a constraint, or of the text that should follow it."""

from __future__ import annotations


class CannotBind(ValueError):
    """The constraint cannot be met or compiled; the text says why."""
