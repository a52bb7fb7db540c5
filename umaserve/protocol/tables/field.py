"""Field of a request: the type of the entries in the tables of fields, and its usual kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec


@dataclass(frozen=True)
class Field:
    """Field of a request; ``words`` complete the sentence '"name" must be ...'."""

    name: str
    type: Any
    words: str
    default: Any = None
    note: str = ""
    whole: bool = False  # 1.0 is a whole number too, and becomes an int


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def number(
    name: str,
    low: float,
    high: float,
    default: float | None,
    note: str = "",
    open_low: bool = False,
) -> Field:
    """Return a field that is a number; ``open_low``: above ``low``."""
    if open_low:
        meta = msgspec.Meta(gt=low, le=high)
        words = f"above {_plain(low)}, at most {_plain(high)}"
    else:
        meta = msgspec.Meta(ge=low, le=high)
        words = f"from {_plain(low)} to {_plain(high)}"
    kind = Annotated[float, meta]
    return Field(name, kind, f"a number {words}", default, note)


def whole(name: str, low: int, high: int, default: int | None, note: str = "") -> Field:
    """Return a field that is a whole number, which may be written like ``1.0``."""
    meta = msgspec.Meta(ge=low, le=high)
    kind = Annotated[int, meta] | Annotated[float, meta]
    return Field(name, kind, f"a whole number from {low} to {high}", default, note, whole=True)


def flag(name: str, default: bool | None, note: str) -> Field:
    """Return a field that is true or false."""
    return Field(name, bool, "true or false", default, note)


def choice(name: str, values: tuple[str, ...], default: str | None, note: str) -> Field:
    """Return a field that is one of several words."""
    *others, last = (f'"{value}"' for value in values)
    kind: Any = Literal[values]  # type: ignore[valid-type]
    return Field(name, kind, f"{', '.join(others)} or {last}", default, note)


def struct_of(name: str, fields: tuple[Field, ...]) -> Any:
    """The type that a message with these fields is decoded to; what is left out is ``None``."""
    return msgspec.defstruct(
        name,
        [
            (f.name, msgspec.Raw, msgspec.Raw(b"null"))
            if f.type is msgspec.Raw
            else (f.name, f.type | None, None)
            for f in fields
        ],
    )
