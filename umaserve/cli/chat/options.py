"""``/set`` of a chat: options of its requests, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _lane(text: str) -> str:
    if text not in ("interactive", "background"):
        raise ValueError
    return text


# name: (option of a request, what reads its value, what it takes)
OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "temp": ("temperature", float, "a number; 0 = greedy"),
    "top-p": ("top_p", float, "a number; 1 = off"),
    "top-k": ("top_k", int, "a whole number; 0 = off"),
    "min-p": ("min_p", float, "a number; 0 = off"),
    "repeat-penalty": ("repeat_penalty", float, "a number; 1 = off"),
    "seed": ("seed", int, "a whole number"),
    "max-tokens": ("max_tokens", int, "a whole number"),
    "priority": ("priority", _lane, "interactive or background"),
}
ALSO = {"temperature": "temp", "num_predict": "max-tokens", "num-predict": "max-tokens"}


def table(settings: dict[str, Any]) -> str:
    """All options with their values; ``-`` is the daemon's default."""
    rows = []
    for name, (option, _, takes) in OPTIONS.items():
        value = settings.get(option)
        rows.append(f"{name:<15} {'-' if value is None else value!s:<12} {takes}")
    return "\n".join([*rows, "`/set NAME VALUE` sets one, `/set NAME -` takes the default"])


def change(settings: dict[str, Any], text: str) -> str:
    """Change ``settings`` as ``NAME VALUE`` says; returns what to tell."""
    word, _, value = text.partition(" ")
    name = ALSO.get(word, word.replace("_", "-"))
    if name not in OPTIONS:
        return f"there is no {word}; it can be {', '.join(OPTIONS)}"
    option, read, takes = OPTIONS[name]
    value = value.strip()
    if value in ("-", "default"):
        settings[option] = None
        return f"({name} is the daemon's default from now on)"
    try:
        settings[option] = read(value)
    except ValueError:
        return f"{name} takes {takes}"
    return f"({name} is {value} from now on)"
