"""The names of `compiled` for ways to compile, as the policy imports them."""

from __future__ import annotations

from .compiled import INNER, PHASE

__all__ = ["INNER", "PHASE"]
