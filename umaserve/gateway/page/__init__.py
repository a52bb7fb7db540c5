"""The page at ``/``: live figures and a box to chat in.

It is one file without anything from elsewhere.  What a model says is set as text, and the policy in
`HEADERS` lets no script run but the page's own, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files

from umaserve.gateway.translate.accept import preferred


def wants_page(accept: str) -> bool:
    """Whether ``/`` is asked for by a browser, by its ``Accept`` header."""
    return preferred(accept, ("application/json", "text/html")) == "text/html"


@lru_cache(maxsize=1)
def page() -> tuple[bytes, dict[str, str]]:
    """The document and its headers."""
    text = files(__name__).joinpath("page.html").read_text("utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; "
        f"frame-ancestors 'none'; script-src {_hash_of('script', text)}; "
        f"style-src {_hash_of('style', text)}"
    )
    return text.encode(), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "vary": "accept",
    }


def _hash_of(element: str, text: str) -> str:
    """The source expression for the only inline element of that kind."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.S)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
