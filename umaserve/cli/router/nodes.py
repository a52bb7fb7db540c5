"""The nodes of a router, as ``--nodes`` names them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_SPECIAL = re.compile(r"[\s#\"'\\$\x00-\x1f\x7f]")  # to haproxy, in a word of its configuration
FORM = "[NAME=]HOST:PORT[+AGENT] or [NAME=]unix:PATH[+AGENT]"


@dataclass(frozen=True)
class Node:
    """A daemon.  ``path`` is its HTTP socket, where the daemon has no ``host`` and ``port``."""

    name: str
    host: str = ""
    port: int = 0
    path: str = ""
    agent_host: str = ""
    agent_port: int = 0  # of its --agent-check; 0 = it has none

    @property
    def is_ipv4(self) -> bool:
        try:
            return isinstance(ipaddress.ip_address(self.host), ipaddress.IPv4Address)
        except ValueError:
            return False


def read_nodes(text: str) -> list[Node]:
    """The nodes of a list with commas between.  Raises ``ValueError``, which says what is wrong."""
    nodes = [_read(part.strip(), i) for i, part in enumerate(text.split(",")) if part.strip()]
    if not nodes:
        raise ValueError(f"--nodes names no node; a node is {FORM}")
    for what in ("name", "place"):
        seen: set[str] = set()
        for node in nodes:
            value = node.name if what == "name" else f"{node.host}:{node.port}{node.path}"
            if value in seen:
                raise ValueError(f"--nodes has two nodes with the {what} {value!r}")
            seen.add(value)
    return nodes


def one_word(option: str, text: str) -> None:
    """Raises ``ValueError`` for a value that haproxy would not read as one word."""
    if not text or _SPECIAL.search(text):
        raise ValueError(
            f"{option} {text!r} must be one word, without spaces, quotes, `#`, `$` and backslashes"
        )


def _read(text: str, i: int) -> Node:
    name, mark, place = text.partition("=")
    if not mark:
        name, place = f"node{i + 1}", text
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ValueError(f"{name!r} is no name of a node: letters, digits, `_`, `.` and `-`")
    place, mark, agent = place.rpartition("+") if "+" in place else (place, "", "")
    if place.startswith("unix:"):
        path = place.removeprefix("unix:")
        if not path.startswith("/") or _SPECIAL.search(path):
            raise ValueError(
                f"{place!r}: name the whole path of the socket, without spaces, quotes, `#`, `$` "
                "and backslashes"
            )
        host, port = "", 0
    else:
        path = ""
        host, port = _host_and_port(place, text)
    agent_host, agent_port = "", 0
    if mark:
        if ":" in agent:
            agent_host, agent_port = _host_and_port(agent, text)
        else:
            agent_host, agent_port = host, _port(agent, text)
        if not agent_host:
            raise ValueError(f"{text!r}: of a Unix socket, name the agent's host too: +HOST:PORT")
    return Node(name, host, port, path, agent_host, agent_port)


def _host_and_port(place: str, text: str) -> tuple[str, int]:
    host, mark, port = place.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_named = bool(mark and bare) and not (":" in bare and bare == host)
    if not is_named or "/" in bare or _SPECIAL.search(bare):
        raise ValueError(f"{text!r} is no node; a node is {FORM}")
    return bare, _port(port, text)


def _port(port: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: {port!r} is no port; a node is {FORM}")
    return int(port)
