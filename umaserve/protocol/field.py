"""One field of a request: what the tables of fields are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One field: ``words`` complete the sentence '"name" must be ...'."""

    name: str
    type: Any
    words: str
    default: Any = None
    note: str = ""
    whole: bool = False  # 1.0 is a whole number too, and becomes an int
