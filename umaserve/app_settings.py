"""Settings that the configuration gives a program by its name."""

from __future__ import annotations

from typing import NamedTuple


class AppSettings(NamedTuple):
    """``weight``: of its share; ``lane``: of its requests that name none (auto: what they are)."""

    weight: float = 1.0
    lane: str = "auto"
