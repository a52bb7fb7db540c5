"""llama-server's ``samplers``: which steps choose a token, and in which order.

Ours has one order, which is their usual one.  A step that is not named is switched off.  Another
order is refused, unless the steps that do anything stand in ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.gateway.daemon.refusal import not_there, wrong
from umaserve.protocol.tables import fields

# what switches each step off, in our order
_OFF: dict[str, dict[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
STEPS = tuple(_OFF)
_KEEP_THE_BEST = ("top_k", "top_p", "min_p")
_LETTERS = {
    "e": "penalties", "d": "dry", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature", "s": "top_n_sigma", "a": "adaptive_p", "i": "infill",
}  # fmt: skip
_OTHER_NAMES = {
    "top-k": "top_k", "top-p": "top_p", "nucleus": "top_p", "typical-p": "typ_p",
    "typical_p": "typ_p", "typical": "typ_p", "min-p": "min_p", "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
}  # fmt: skip
DEFAULTS = fields.DEFAULTS["generate"]
# steps that we have not, and the field without which they do nothing
_ABSENT = {"top_n_sigma": "top_n_sigma", "adaptive_p": "adaptive_target"}


def in_our_order(body: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with the steps off that ``samplers`` does not name.  Raises ``Refusal``."""
    for name in _ABSENT.values():
        if _number(body.get(name)) > 0:
            raise not_there(f'"{name}"')
    if _number(body.get("dynatemp_range")) > 0:
        raise not_there('"dynatemp_range"')
    given = body.get("samplers")
    if given is None or fields.get("mirostat"):  # which takes the place of them all
        return fields
    named = [step for step in _named(given) if step not in _ABSENT]
    fields = dict(fields)
    for step, off in _OFF.items():
        if step not in named:
            fields |= off
    at_work = [
        step
        for step in named
        if any(fields.get(name, DEFAULTS[name]) != off for name, off in _OFF[step].items())
    ]
    if _number(fields.get("temperature", DEFAULTS["temperature"])) <= 0:  # the best one is taken
        at_work = [step for step in at_work if step not in _KEEP_THE_BEST]
    if at_work != [step for step in STEPS if step in at_work]:
        raise not_there(f'this order of "samplers" (here it is {", ".join(STEPS)})')
    return fields


def _named(given: Any) -> list[str]:
    if isinstance(given, str):
        names: list[Any] = [_LETTERS.get(letter, letter) for letter in given]
    elif isinstance(given, list):
        names = [_OTHER_NAMES.get(name, name) if isinstance(name, str) else "" for name in given]
    else:
        names = [""]
    if "infill" in names:
        raise not_there('"infill" in "samplers"')
    if not all(name in _OFF or name in _ABSENT for name in names):
        raise wrong("samplers", f"be a list of {', '.join(STEPS)}")
    return names


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0.0
