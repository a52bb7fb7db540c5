"""Named numbers that Python and compiled code share.

    class Facts(Record):
        began: int  # ns
        past: float
        times: np.ndarray = ints(3, 4)  # int64[3, 4]

    facts = Facts.zeros()
    facts.began = 1
    facts.times[2, 3] = 4

A record lies in memory as one row of a structured array (numpy's ``np.record``), so compiled code
reads and writes the fields where they are.  Whoever made it keeps it alive: compiled code does not.
A C callback gets its address (`address_of`), and ``carray(address, 1, Facts.dtype)[0]`` is it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

R = TypeVar("R", bound="Record")
_KINDS = {"int": np.int64, "float": np.float64, int: np.int64, float: np.float64}


def ints(*shape: int) -> Any:
    """Declare a field of a record as an int64 array of this shape."""
    return (np.int64, shape)


class Record:
    """Base class of records.

    Fields are annotated ``int`` (int64) or ``float`` (float64), or are arrays (`ints`).
    """

    dtype: ClassVar[np.dtype[Any]]

    if TYPE_CHECKING:

        def tolist(self) -> tuple[float, ...]: ...

    def __init_subclass__(cls) -> None:
        fields: list[Any] = []
        for name, kind in cls.__annotations__.items():
            if hasattr(np.record, name):
                raise TypeError(f"numpy has another {name} of every record")
            fields.append((name, *cls.__dict__.get(name, (_KINDS.get(kind),))))
        # aligned, so that no processor reads or writes a number in two steps
        cls.dtype = np.dtype((np.record, np.dtype(fields, align=True)))

    @classmethod
    def zeros(cls: type[R]) -> R:
        """Return a record with all fields 0."""
        return cast(R, cls.several(1)[0])

    @classmethod
    def several(cls, *shape: int) -> np.ndarray:
        """An array of this shape, all fields 0; each entry is one."""
        return np.zeros(shape, cls.dtype).view(np.recarray)


def address_of(record: Any, field: str = "") -> int:
    """Where a record, or a field of it, lies for as long as the record lives."""
    offset = record.dtype.fields[field][1] if field else 0
    return int(np.frombuffer(record, np.uint8).ctypes.data + offset)
