"""Keys of YAML files as the project's first documents spell them, in today's terms.

docs/notes/README.md lists them for people.
"""

from __future__ import annotations

from typing import Any

from umaserve.config.settings import ConfigError

Taken = tuple[str, Any, str]  # option, value, the key as the file has it

RENAMED = {
    "model": "model",  # a path; with keys it is the section
    "latency_cap": "latency_cap",
    "bmt_budget_gbps": "bmt_budget",
    "ipc.uds_path": "socket",
    "logging.scorecard_interval_s": "scorecard_interval_s",
}
SUPERSEDED = {
    "ipc.backlog": "512 clients may wait to be accepted, and they are accepted at once",
    "scheduler.start_target_tokens": "a tick begins with what the measured costs allow",
    "metrics.tick_interval_ms": "who asks for metrics says how often",
}
PREEMPT = "scheduler.preempt_at_token"
PRIORITIES = ("qos.interactive.priority", "qos.background.priority")


def translate(tree: dict[str, Any], path: str) -> tuple[list[Taken], list[str]]:
    """Take the older keys out of ``tree``: settings, and warnings about keys without effect.

    Raises ``ConfigError`` where a key asks for what is not so.
    """
    taken: list[Taken] = []
    for key, option in RENAMED.items():
        value = _take(tree, key)
        if value is not None:
            if key == "bmt_budget_gbps" and type(value) in (int, float):
                value = f"{value:f}".rstrip("0").rstrip(".") + "GBps"
            taken.append((option, value, key))
    if _take(tree, PREEMPT) not in (None, True):
        raise ConfigError(
            f"{path}: {PREEMPT} must be true: an interactive request always goes before "
            "background work at the next token"
        )
    _check_priorities([_take(tree, key) for key in PRIORITIES], path)
    warnings = [
        f"{path}: {key} has no effect any more: {reason}"
        for key, reason in SUPERSEDED.items()
        if _take(tree, key) is not None
    ]
    return taken, warnings


def _take(tree: dict[str, Any], key: str) -> Any:
    """The value at ``key``, which is removed; ``None`` where there is none, or a section."""
    *sections, last = key.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            return None
        tree = inner
    if isinstance(tree.get(last), dict):
        return None
    return tree.pop(last, None)


def _check_priorities(priorities: list[Any], path: str) -> None:
    for key, value in zip(PRIORITIES, priorities, strict=True):
        if value is not None and type(value) is not int:
            raise ConfigError(f"{path}: {key} must be a whole number, not {value!r}")
    interactive, background = priorities
    if None not in priorities and interactive <= background:
        raise ConfigError(
            f"{path}: {PRIORITIES[0]} is {interactive} and {PRIORITIES[1]} is {background}; the "
            "first must be the larger: interactive requests always go before background ones"
        )
