"""Caller of an HTTP request as the socket's fields: lane, session, app and key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.protocol import WITHOUT_KEY

MAX_CHARS = 128  # of a session or an app, as the socket has it

SESSION_HEADERS = ("x-uma-session", "x-claude-code-session-id", "x-session-affinity", "session-id")
SESSION_FIELDS = ("prompt_cache_key", "user")

_PRODUCT = re.compile(r"[^\s/()]+")


def caller_fields(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Return lane, session, app and key as far as known; the daemon chooses an absent lane."""
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
    name = "" if key == WITHOUT_KEY else key
    app = headers.get("x-uma-app") or name or product(headers.get("user-agent", ""))
    if app:
        fields["app"] = app[:MAX_CHARS]
    return fields


def own_rows(request: Request, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows about requests or programs that the caller may see: all with a key that is marked
    ``admin``, else those of the caller's own key."""
    admin, key = request.state.admin, request.state.key
    return [row for row in rows if admin or (row["key"] or "") == key]


def require_admin(request: Request, what: str) -> None:
    """Raises ``Refusal`` where the caller's key is not marked ``admin``."""
    if request.state.admin:
        return
    how = "a key that the key file marks `admin`"
    if request.state.key == WITHOUT_KEY:
        how = "the owner's key, as `umaserve connect` hands it out"
    raise Refusal(403, "admin_needed", f"{what} takes {how}")


def product(user_agent: str) -> str:
    """The program's name: ``curl`` of ``curl/8.5.0``."""
    found = _PRODUCT.match(user_agent.strip())
    return found[0] if found else ""


def lane_header(fields: dict[str, Any]) -> str:
    """``X-UMA-Lane``, the lane and why, for as long as the daemon has not said it."""
    lane = fields.get("priority") or "auto"
    return "auto; nobody named a lane" if lane == "auto" else f"{lane}; asked for"
