"""The settings of a service: those that were given here, made to hold elsewhere.

A service manager starts the daemon in another folder, and without this shell's variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umaserve.config import OPTIONS, Config, Option
from umaserve.config.kinds import Path, Switch

# where things lie, models of other tools among them
_ENVIRONMENT = (
    "UMA_CACHE_DIR", "UMA_STATE_DIR", "UMA_LLAMA_BUILD", "UMA_DEBUG", "XDG_CACHE_HOME",
    "XDG_STATE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE",
    "OLLAMA_MODELS",
)  # fmt: skip
# nothing, a word, or a reference such as hf:OWNER/REPO
_NO_PATH = re.compile(r"$|off$|auto$|demo$|[a-z.]+:")


@dataclass(frozen=True)
class Service:
    """Settings of a unit.  ``socket`` is empty for the usual place of the service manager."""

    command: tuple[str, ...]
    socket: str
    environment: Mapping[str, str]
    drain_s: float = 30.0
    on_demand: bool = False


def service(
    program: list[str],
    flags: Mapping[str, Any],
    config: Config,
    environ: Mapping[str, str],
    on_demand: bool,
) -> Service:
    """``flags``: as `umaserve.config.flag_values` has them; ``config``: what came of all settings.

    Settings from the environment become flags too.
    """
    words: list[str] = []
    for option in OPTIONS:
        if option.name != "socket":  # the unit of the socket has it
            if option.name in flags:
                words += _words(option, flags[option.name])
            elif environ.get(option.env):
                words += _words(option, environ[option.env])
    is_usual = config.origin.get("socket", "default") == "default"
    return Service(
        command=(*program, "serve", *words),
        socket="" if is_usual else os.path.abspath(config.socket),
        environment={name: environ[name] for name in _ENVIRONMENT if environ.get(name)},
        drain_s=config.drain_s,
        on_demand=on_demand,
    )


def _words(option: Option, given: Any) -> list[str]:
    """The flag, so that it stays the same in every folder."""
    if isinstance(option.kind, Switch):
        given = option.kind.parse(given)  # from the environment it is a word
    if isinstance(given, bool):
        return [option.flag if given else f"--no-{option.flag.removeprefix('--')}"]
    if isinstance(given, list):
        return [word for each in given for word in _words(option, each)]
    text = str(given)
    if option.name == "model_dir":
        text = ",".join(_absolute(part.strip()) for part in text.split(","))
    elif option.name == "lora":
        pairs = (part.strip().partition("=") for part in text.split(","))
        text = ",".join(f"{name}{sign}{_absolute(path.strip())}" for name, sign, path in pairs)
    elif isinstance(option.kind, Path):
        text = _absolute(text)
    elif option.name == "http" and text.startswith("unix:"):
        text = "unix:" + _absolute(text.removeprefix("unix:"))
    # one word, since a value may begin with a dash
    return [f"{option.flag}={text}"]


def _absolute(text: str) -> str:
    return text if _NO_PATH.match(text) else os.path.abspath(os.path.expanduser(text))
