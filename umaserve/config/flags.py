"""The command line's side of the options: argparse arguments made from the table."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from umaserve.config.kinds import Names, Switch
from umaserve.config.options import OPTIONS, SECTIONS, Option

_TITLES = {
    "model": "model and where it runs",
    "ipc": "where clients come in",
    "limits": "limits",
    "scheduler": "scheduler",
    "qos.interactive": "quality of service",
    "metrics": "what is shown and kept",
    "logging": "logging",
    "": "configuration",
}

_SHORT = {"model": ("-m",)}


def _help(option: Option) -> str:
    text = option.help.replace("%", "%%")
    if isinstance(option.kind, Switch):
        shown = "on" if option.default else "off"
    else:
        shown = option.shown or str(option.default)
    return f"{text} (default: {shown}; {option.env})"


def add_flags(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Add every option's flag, or those of ``names``.

    Values stay text, and flags that were not given stay unset.
    """
    for section in (*SECTIONS, ""):
        options = [option for option in OPTIONS if option.section == section]
        options = [option for option in options if not names or option.name in names]
        if not options:
            continue
        group = parser.add_argument_group(_TITLES[section])
        for option in options:
            settings: dict[str, Any] = {
                "dest": option.name,
                "default": argparse.SUPPRESS,
                "help": _help(option),
            }
            if isinstance(option.kind, Switch):
                settings["action"] = argparse.BooleanOptionalAction
            else:
                settings["metavar"] = option.kind.metavar
                if isinstance(option.kind, Names) or option.name == "model":
                    settings["action"] = "append"
            group.add_argument(*_SHORT.get(option.name, ()), option.flag, **settings)


def flag_values(namespace: argparse.Namespace) -> dict[str, Any]:
    """The given flags of a parsed command line, for ``load_config``."""
    names = {option.name for option in OPTIONS}
    return {name: value for name, value in vars(namespace).items() if name in names}
