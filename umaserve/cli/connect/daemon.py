"""The daemon as apps see it: its address, and what its model can do."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from umaserve.cli.parts.common import say
from umaserve.client import Client, ConnectionFailed, OtherUser, UmaError
from umaserve.client.connect import socket_path
from umaserve.connect.apps import App, Target
from umaserve.system.own_key import own_key

USUAL = "http://127.0.0.1:8080"
LIVE_S = 5.0  # for an answer
TEMPLATE_S = 5.0  # until the daemon has looked at the model's template
LOOK_S = 0.2
LONGEST_OUTPUT = 8192  # tokens
MOST_BYTES = 4 << 20


class NoDaemon(Exception):
    """The text says what was looked for, and what to do."""


def url_of(told: str | None, socket: str | None) -> str:
    """The address for apps: what is told, else what the daemon at this socket says.

    Where that daemon has no gateway of its own, the usual address is tried.

    Raises ``NoDaemon``.
    """
    if told is not None:
        return _tidy(told)
    path = socket_path(socket)
    try:
        with Client(socket, timeout=LIVE_S) as client:
            url = client.info().get("http")
    except OtherUser:
        raise
    except ConnectionFailed:
        if answers(USUAL):
            return USUAL
        raise NoDaemon(
            f"no daemon answers at {path}, and none at {USUAL}; start it with\n"
            "  umaserve --http 127.0.0.1:8080\nor tell its address with --url"
        ) from None
    if url is None:
        if answers(USUAL):  # a gateway of its own
            return USUAL
        raise NoDaemon(
            f"the daemon at {path} speaks no HTTP; start it with --http 127.0.0.1:8080,\n"
            "or beside it: umaserve gateway"
        )
    if not str(url).startswith("http"):
        raise NoDaemon(
            f"the daemon speaks HTTP at a Unix socket alone ({url}), which no app can use;\n"
            "start it with --http 127.0.0.1:8080, or beside it: umaserve gateway"
        )
    return _tidy(str(url))


def _tidy(url: str) -> str:
    """Raises ``NoDaemon``."""
    if "://" not in url:
        url = "http://" + url
    url = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise NoDaemon(f"--url {url} is no address; write it as {USUAL}")
    return url


def open_http(url: str, timeout: float) -> HTTPConnection:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout)


def path_below(url: str, route: str) -> str:
    return urlsplit(url).path + route


def answers(url: str) -> bool:
    """Whether one of ours is there."""
    try:
        response, _ = _get(url, "/health", "")
    except (OSError, HTTPException):
        return False
    return response.getheader("server") == "umaserve"


def _get(url: str, route: str, key: str) -> tuple[HTTPResponse, bytes]:
    """Raises ``OSError`` and ``HTTPException``."""
    connection = open_http(url, LIVE_S)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", path_below(url, route), headers=headers)
        response = connection.getresponse()
        return response, response.read(MOST_BYTES)
    finally:
        connection.close()


def _health(url: str, key: str) -> str:
    """The daemon's state in a word; empty where nobody says it."""
    try:
        return str(json.loads(_get(url, "/health", key)[1])["status"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ""


def look(url: str, key: str) -> Target:
    """Return the daemon and its model once no model is loading.  Raises ``NoDaemon``."""
    said = False
    while _health(url, key) == "loading":
        if not said:
            say("(the model is loading)")
            said = True
        time.sleep(LOOK_S)
    until_s = time.monotonic() + TEMPLATE_S
    while True:
        props = _props(url, key)
        abilities = props.get("chat_template_caps") or {}
        # empty just after its start: the daemon has not yet looked at the template
        if abilities or time.monotonic() > until_s:
            break
        time.sleep(LOOK_S)
    context = int(props["default_generation_settings"]["n_ctx"])
    tools = bool(abilities.get("supports_tools") or abilities.get("supports_tool_calls"))
    gap = props.get("gap") or {}
    whole = all(name in gap for name in ("prefix", "suffix", "middle"))
    return Target(
        url, key, str(props["model_alias"]), context, max(1, min(LONGEST_OUTPUT, context // 4)),
        tools, gap["prefix"] if whole else "", bool((props.get("modalities") or {}).get("vision")),
        bool(props.get("thinks")),
    )  # fmt: skip


def with_own_key(target: Target, app: App, socket: str | None) -> Target:
    """The target with the key of this user's own, where the app keeps a key and has none.

    Only an address that this user's daemon gives as its own gets it.
    """
    if target.key or not app.keeps_key:
        return target
    try:
        with Client(socket, timeout=LIVE_S) as client:
            url = client.info().get("http")
    except UmaError:
        return target
    return target._replace(key=own_key()) if url and _tidy(str(url)) == target.url else target


def _props(url: str, key: str) -> dict[str, Any]:
    try:
        response, body = _get(url, "/props", key)
    except (OSError, HTTPException) as error:
        raise NoDaemon(f"nothing answers at {url}: {error or type(error).__name__}") from None
    if response.status != 200:
        raise NoDaemon(refused(url, response, body, key))
    try:
        props: dict[str, Any] = json.loads(body)
        props["default_generation_settings"]["n_ctx"], props["model_alias"]
    except (ValueError, KeyError, TypeError):
        raise NoDaemon(f"something else than a daemon of ours answers at {url}") from None
    return props


def refused(url: str, response: HTTPResponse, body: bytes, key: str) -> str:
    """Why there is no answer, in the daemon's words, and what to do."""
    if response.getheader("server") != "umaserve":
        return f"something else than a daemon of ours answers at {url} (status {response.status})"
    if response.status == 401:
        hint = "this key is none of its keys" if key else "it wants a key: --key KEY"
        return f"{url} lets nobody in without a key of its --api-key-file; {hint}"
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = "it does not say why"
    return f"{url} answers with status {response.status}: {text}"
