"""``[apps."NAME"]``: the weight and the lane of a program, which a config file alone can set."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from umaserve.app_settings import AppSettings
from umaserve.config.kinds import Choice, Number
from umaserve.config.settings import ConfigError

SECTION = "apps"
LANES = ("auto", "interactive", "background")
KINDS: dict[str, Number | Choice] = {"weight": Number(0.01, 100), "lane": Choice(LANES)}
MEANINGS = {
    "weight": "its share; a program without a weight has 1",
    "lane": "lane of its requests that name none",
}
DEFAULTS = {"weight": f"{AppSettings().weight:g}", "lane": AppSettings().lane}
MOST_NAME = 128  # characters, as of ``app`` in a request


def take_apps(tree: dict[str, Any], path: str) -> Mapping[str, AppSettings]:
    """Take the section out of a file's content.  Raises ``ConfigError`` for what it cannot hold."""
    content = tree.pop(SECTION, None) or {}
    if not isinstance(content, dict):
        raise ConfigError(f'{path}: {SECTION} must hold sections such as [apps."zed"]')
    apps = {}
    for name, settings in content.items():
        where = f'{path}: [apps."{name}"]'
        if not 1 <= len(str(name)) <= MOST_NAME or not str(name).isprintable():
            raise ConfigError(f"{where} names no program: 1 to {MOST_NAME} printable characters do")
        if not isinstance(settings, dict):
            raise ConfigError(f"{where} must be a section with the keys weight and lane")
        apps[str(name)] = _settings(settings, where)
    return MappingProxyType(apps)


def _settings(settings: dict[str, Any], where: str) -> AppSettings:
    values: dict[str, Any] = {}
    for key, value in settings.items():
        kind = KINDS.get(str(key))
        if kind is None:
            raise ConfigError(f"{where}: unknown key {key!r}{_nearest(str(key), tuple(KINDS))}")
        try:
            values[str(key)] = kind.parse(value)
        except ValueError as error:
            hint = _nearest(str(value), LANES) if key == "lane" else ""
            raise ConfigError(
                f"{where} {key}: {value!r} is not possible: it takes {error}{hint}"
            ) from None
    return AppSettings(**values)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
