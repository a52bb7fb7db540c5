"""Named numbers that Python and compiled code share.

    class Facts(Record):
        began: int  # ns
        past: float

    facts = Facts.zeros()
    facts.began = 1

A record lies in memory as one row of a structured array (numpy's ``np.record``), so compiled code
reads and writes the fields where they are.  Whoever made it keeps it alive: compiled code does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

R = TypeVar("R", bound="Record")
_KINDS = {"int": np.int64, "float": np.float64, int: np.int64, float: np.float64}


class Record:
    """What to derive from: fields are annotated ``int`` (int64) or ``float`` (float64)."""

    dtype: ClassVar[np.dtype[Any]]

    if TYPE_CHECKING:

        def tolist(self) -> tuple[float, ...]: ...

    def __init_subclass__(cls) -> None:
        fields = [(name, _KINDS[kind]) for name, kind in cls.__annotations__.items()]
        for name in cls.__annotations__:
            if hasattr(np.record, name):
                raise TypeError(f"numpy has another {name} of every record")
        cls.dtype = np.dtype((np.record, fields))

    @classmethod
    def zeros(cls: type[R]) -> R:
        """One with all fields 0."""
        return cast(R, cls.several(1)[0])

    @classmethod
    def several(cls, n: int) -> np.ndarray:
        """``[n]``, all fields 0; each entry is one."""
        return np.zeros(n, cls.dtype).view(np.recarray)
