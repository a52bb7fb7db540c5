"""Who asks: lane, session, app and key of an HTTP request, as fields of the socket's."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

MAX_CHARS = 128  # of a session or an app, as the socket has it

SESSION_HEADERS = ("x-uma-session", "x-claude-code-session-id", "x-session-affinity", "session-id")
SESSION_FIELDS = ("prompt_cache_key", "user")

_PRODUCT = re.compile(r"[^\s/()]+")


def caller_fields(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """What is known of these four; a lane that nobody names is left to the daemon."""
    headers = request.headers
    fields: dict[str, Any] = {}
    lane = body.get("priority")
    if lane is None:
        lane = headers.get("x-uma-priority")
    if lane is None and body.get("service_tier") == "flex":
        lane = "background"
    if lane not in (None, "auto"):
        fields["priority"] = lane
    named = [headers.get(name) for name in SESSION_HEADERS]
    named += [body.get(name) for name in SESSION_FIELDS]
    session = next((name for name in named if name and isinstance(name, str)), None)
    if session is not None:
        fields["session"] = session[:MAX_CHARS]
    key = getattr(request.state, "key", "")
    if key:
        fields["key"] = key
    app = headers.get("x-uma-app") or key or product(headers.get("user-agent", ""))
    if app:
        fields["app"] = app[:MAX_CHARS]
    return fields


def product(user_agent: str) -> str:
    """The program's name: ``curl`` of ``curl/8.5.0``."""
    found = _PRODUCT.match(user_agent.strip())
    return found[0] if found else ""


def lane_header(fields: dict[str, Any]) -> str:
    """``X-UMA-Lane``, the lane and why, for as long as the daemon has not said it."""
    lane = fields.get("priority")
    return f"{lane}; asked for" if lane else "auto; nobody named a lane"
