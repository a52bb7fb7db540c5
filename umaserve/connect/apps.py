"""Descriptions of apps for ``connect``, and the places where apps keep their settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from umaserve.connect.edits import Path, Put
from umaserve.connect.text import Language

NAME = "UMA Serve"  # as menus show it
PROVIDER = "uma"  # as settings call it
MODEL = "local"  # a name that no model has means the default model
NO_KEY = "none"  # for apps that want some key
AGENT_TOKENS = 16384  # that an agent's first prompt may have
PATIENCE_MS = 1_800_000  # for a long prompt on a slow machine; apps give up after 2 to 5 minutes


class Target(NamedTuple):
    """The daemon, as far as apps are told of it.

    ``url`` has no slash at its end.  ``key`` may be empty.  ``model`` is the loaded model's name.
    ``context`` and ``output`` are tokens.  ``gap`` is the text of its token before a gap, or empty.
    """

    url: str
    key: str
    model: str
    context: int
    output: int
    tools: bool
    gap: str = ""
    images: bool = False  # the model reads pictures
    thinks: bool = False  # its chat template knows thoughts


class Places(NamedTuple):
    """Where this user's settings lie.  ``exists`` tells whether a path is there."""

    home: str
    environment: Mapping[str, str]
    mac: bool
    exists: Callable[[str], bool]

    def at_home(self, *names: str) -> str:
        return os.path.join(self.home, *names)

    def in_config(self, *names: str) -> str:
        """Below ``~/.config``, or where the environment puts it."""
        folder = self.environment.get("XDG_CONFIG_HOME") or self.at_home(".config")
        return os.path.join(folder, *names)

    def of_system(self, *names: str) -> str:
        """Below the folder in which desktop apps of this system keep settings."""
        if self.mac:
            return self.at_home("Library", "Application Support", *names)
        return self.in_config(*names)

    def named(self, variable: str, *names: str) -> str:
        """A folder that the environment may name, else this one of the home."""
        return self.environment.get(variable) or self.at_home(*names)


class Change(NamedTuple):
    """Edits of one file."""

    path: str
    language: Language
    edits: tuple[Put, ...]


class Ask(NamedTuple):
    """A request as the app makes it; ``stream`` of server-sent events."""

    route: str
    headers: dict[str, str]
    body: dict[str, Any]


class App(NamedTuple):
    """``programs`` are names on the PATH.  ``file`` is where its address stands, at ``address``.

    ``refusal`` says why its settings cannot be changed here, or is empty.  ``notes`` are lines
    for the person.  ``wants_tools``: it can do little with a model that calls none.
    ``keeps_key``: its settings hold a key; else a person has to give it one.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    file: Callable[[Places], str]
    language: Language
    address: Path
    changes: Callable[[Places, Target], list[Change]]
    asks: Callable[[Target], list[Ask]]
    notes: Callable[[Target], list[str]] = lambda target: []
    refusal: Callable[[Places], str] = lambda places: ""
    wants_tools: bool = False
    keeps_key: bool = True


def bearer(target: Target) -> dict[str, str]:
    return {"Authorization": f"Bearer {target.key or NO_KEY}"}


def chat(target: Target, agent: str, **headers: str) -> list[Ask]:
    """A question over OpenAI's chat completions; ``agent`` is the app's ``User-Agent``."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    told = {"User-Agent": agent, **bearer(target), **headers}
    return [Ask("/v1/chat/completions", told, body)]


def warnings(app: App, target: Target) -> list[str]:
    """Why the app may not get far with this model."""
    if not app.wants_tools:
        return []
    found = []
    if not target.tools:
        found.append(f"{target.model} calls no tools, and {app.title} does all its work by them")
    if target.context < AGENT_TOKENS:
        size = f"the context has {target.context} tokens"
        found.append(f"{size}, and an agent's first prompt has 8 to 16 thousand: see --n-ctx")
    return found
