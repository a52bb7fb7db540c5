"""Host that a request names: a check against pages that point their own name at this machine.

The name of a page of evil.example may resolve to 127.0.0.1.  To a browser, the page is then of the
same origin as the gateway, and may read the gateway's answers (DNS rebinding).  The ``Host`` header
still has the page's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit


def host_of(target: str, host: str) -> str:
    """The host that a request target and the ``Host`` header name together.

    An absolute target (as clients send to proxies) overrides the header.  Raises ``ValueError``.
    """
    if target.startswith("/"):
        return host
    parts = urlsplit(target)
    return parts.netloc if parts.scheme in ("http", "https") and parts.netloc else host


def host_is_ours(named: str, allowed: Iterable[str]) -> bool:
    """Whether ``named`` (``host`` or ``host:port``) can only mean us: an IP address, localhost, or
    an allowed name.  The port does not matter: somebody may forward another one here."""
    try:
        parts = urlsplit(f"//{named}")
        host = parts.hostname or ""
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError:
        return False
    if parts.netloc != named or "@" in named:
        return False
    host = host.removesuffix(".")
    if host == "localhost" or host in {name.lower().removesuffix(".") for name in allowed}:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
