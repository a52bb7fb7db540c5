"""A route: a path, what answers it, and what the documents say of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(NamedTuple):
    """``fields`` are a JSON schema's properties for the body, ``required`` those that must be."""

    method: str  # GET also answers HEAD
    path: str
    handler: Handler
    summary: str
    family: str
    fields: dict[str, Any] = {}
    required: tuple[str, ...] = ()
