"""Caller of a request: the owner of its key, or the user whose program has connected.

Without keys, a connection must come from the daemon's own user or from root.  Where the system
does not tell the user, a request shares nothing with the owner's requests, unless it has the
owner's own key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.keys import Key, Keys
from umaserve.gateway.page import wants_page
from umaserve.gateway.settings import Settings
from umaserve.protocol import WITHOUT_KEY
from umaserve.system.tcp_peer import NOBODY, UNTOLD

UID = "umaserve.uid"  # of the scope: the user at the other end, where that was looked up
MOST_LOGGED = 64  # users, each once
OPEN_PATHS = ("/health", "/v1/health")  # of them no key is asked


Say = Callable[[str, str], None]


class Caller(NamedTuple):
    """``key`` names the owner of what is computed: of a key, or empty for the daemon's own user.
    ``known``: whether the caller may know more than the state; ``admin``: also of others."""

    key: str
    known: bool
    admin: bool = False


OWNER, STRANGER = Caller("", True, True), Caller("", False)


class Callers:
    """Tells callers apart."""

    def __init__(self, settings: Settings, keys: Keys, say: Say) -> None:
        self._owner, self._keys, self._say = settings.owner, keys, say
        self._refused: set[int] = set()  # users that the log has

    def of(self, scope: Scope, headers: Headers) -> Caller:
        """The caller of a request.  Raises ``Refusal``."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (bearer.strip() if kind.lower() == "bearer" else "")
        key = self._keys.find(given) if given else None
        if self._keys:
            return self._by_key(scope, headers, given, key)
        return self._by_user(scope, key)

    def _by_key(self, scope: Scope, headers: Headers, given: str, key: Key | None) -> Caller:
        """The page holds nothing, and of the state no key is asked."""
        if key is not None:
            return Caller(key.name, True, key.admin)
        is_page = scope["path"] == "/" and wants_page(headers.get("accept", ""))
        if _reads(scope) and (is_page or scope["path"] in OPEN_PATHS):
            return STRANGER
        text = "the API key is wrong" if given else "an API key is needed"
        text += "; send it as Authorization: Bearer KEY or as X-Api-Key"
        raise Refusal(401, "invalid_api_key", text, (("www-authenticate", "Bearer"),))

    def _by_user(self, scope: Scope, key: Key | None) -> Caller:
        """``key`` is the owner's own, where the request has it."""
        uid = scope.get(UID, self._owner)
        if uid in (self._owner, 0):
            return OWNER
        if uid == UNTOLD:
            return Caller(WITHOUT_KEY, True) if key is None else OWNER
        if _reads(scope) and scope["path"] in OPEN_PATHS:
            return STRANGER
        raise Refusal(403, "other_user", self._why_not(uid))

    def _why_not(self, uid: int) -> str:
        who = "no open socket of this machine is" if uid == NOBODY else f"user {uid} is"
        text = (
            f"{who} at the other end of this connection, and without API keys only user "
            f"{self._owner}, whose daemon this is, and root may ask. A container's program and a "
            "forwarded port count as the user that forwards them, if that can be told at all; "
            "with --api-key-file, whoever has a key may ask"
        )
        if uid not in self._refused and len(self._refused) < MOST_LOGGED:
            self._refused.add(uid)
            self._say("warn", f"refused over HTTP: {text}")
        return text


def _reads(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD")
