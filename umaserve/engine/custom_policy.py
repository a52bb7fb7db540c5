"""Policies in plain Python, which plan between two ticks."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from umaserve.policy import greedy

from .boot import CannotLoad


def find_policy(name: str) -> Callable[..., int] | None:
    """A policy in plain Python by name; None for the compiled one.  Raises CannotLoad."""
    if name == "guarded":
        return None
    if name == "greedy":
        return greedy.plan_tick
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise CannotLoad(f"the policy {name} cannot be imported: {error!r}") from error
    if not callable(found):
        raise CannotLoad(f"the policy {name} is no function")
    return found  # type: ignore[no-any-return]
