"""The page at ``/``: a chat, its conversations and live figures.

It is one document without anything from elsewhere, joined from the files in this folder.  What a
model says is set as text, and the policy in its headers lets no script run but the page's own, by
its hash.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from functools import lru_cache
from importlib.resources import files

from umaserve.gateway.translate.answers.accept import preferred

STYLES = ("style/base.css", "style/chat.css", "style/figures.css", "style/narrow.css")
MAIN = "script/main.js"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "([^"]+)";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.M)


def wants_page(accept: str) -> bool:
    """Whether ``/`` is asked for by a browser, by its ``Accept`` header."""
    return preferred(accept, ("application/json", "text/html")) == "text/html"


@lru_cache(maxsize=1)
def page() -> tuple[bytes, dict[str, str]]:
    """The document and its headers."""
    style, script = "".join(map(_read, STYLES)), "const modules = {};\n" + joined(MAIN, set())
    text = _read("page.html")
    text = text.replace("</style>", f"{style}</style>").replace("</script>", f"{script}</script>")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; script-src {_hash_of(script)}; "
        f"style-src {_hash_of(style)}"
    )
    return text.encode(), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "vary": "accept",
    }


def joined(path: str, seen: set[str]) -> str:
    """A module's text behind the modules that it imports, each once and in a scope of its own."""
    if path in seen:
        return ""
    seen.add(path)
    text, folder = _read(path), posixpath.dirname(path)
    before = ""

    def given(found: re.Match[str]) -> str:
        nonlocal before
        name = posixpath.normpath(f"{folder}/{found[2]}")
        before += joined(name, seen)
        return f'const {found[1]} = modules["{name}"];\n'

    body = _EXPORT.sub(r"\1", _IMPORT.sub(given, text))
    names = ", ".join(found[2] for found in _EXPORT.finditer(text))
    return f'{before}modules["{path}"] = (() => {{\n{body}return {{ {names} }};\n}})();\n'


def _read(path: str) -> str:
    return files(__name__).joinpath(path).read_text("utf-8")


def _hash_of(content: str) -> str:
    """The source expression for an inline element with this content."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
