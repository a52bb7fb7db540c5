"""Field of a request: the type of the entries in the tables of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """Field of a request; ``words`` complete the sentence '"name" must be ...'."""

    name: str
    type: Any
    words: str
    default: Any = None
    note: str = ""
    whole: bool = False  # 1.0 is a whole number too, and becomes an int
