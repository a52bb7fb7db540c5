"""Which model a file is: told by what it holds, not by where it lies.

Another file can be put in a model's place while the model is served.  What ran on the first must
not go on with the second, whose numbers and vocabulary are others.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from umaserve.system.regular_file import open_regular

_SPLIT_NAME = re.compile(r"^(.*)-\d{5}-of-(\d{5})\.gguf$")
WHOLE_BYTES = 8 << 20  # a file up to this size is read whole
_ENDS = 1 << 19  # of a larger one the first and the last bytes (header, vocabulary, last tensor)
_PIECES, _PIECE = 256, 1 << 14  # and pieces from all over it
_MOST_FILES = 1024


class ModelIdentity(msgspec.Struct, frozen=True):
    """``files`` has device, inode, size, and times of change in ns of each file of the model;
    ``digest`` is of what they hold.  Where the first are equal nobody has written; where they
    differ, equal digests mean the same model (a copy, or a file that was touched).  ``adapters``:
    digests of the LoRA adapters that were loaded with it, by number."""

    files: tuple[tuple[int, ...], ...]
    digest: str
    adapters: tuple[str, ...] = ()


def model_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file, or all files of a model that is split, by their names."""
    path = Path(path)
    found = _SPLIT_NAME.match(path.name)
    if found is None:
        return [path]
    numbers = range(1, min(int(found[2]), _MOST_FILES) + 1)
    return [path.with_name(f"{found[1]}-{number:05d}-of-{found[2]}.gguf") for number in numbers]


def file_facts(path: str | os.PathLike[str]) -> tuple[tuple[int, ...], ...]:
    """Return the value for `ModelIdentity.files`, reading no file.  Raises ``OSError``."""
    out: list[tuple[int, ...]] = []
    for number, file in enumerate(model_files(path)):
        try:
            found = os.stat(file)
        except FileNotFoundError:
            if not number:
                raise
            out.append(())
            continue
        out.append(
            (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        )
    return tuple(out)


def identify(path: str | os.PathLike[str]) -> ModelIdentity:
    """Raises ``OSError``."""
    files = file_facts(path)
    digest = hashlib.sha256()
    for file, facts in zip(model_files(path), files, strict=True):
        if facts:
            _read_into(digest, file)
    return ModelIdentity(files, digest.hexdigest())


def _read_into(digest: hashlib._Hash, path: Path) -> None:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= WHOLE_BYTES:
            while data := file.read(_ENDS):
                digest.update(data)
            return
        fd = file.fileno()
        digest.update(os.pread(fd, _ENDS, 0))
        for number in range(_PIECES):
            digest.update(os.pread(fd, _PIECE, number * (size - _PIECE) // _PIECES))
        digest.update(os.pread(fd, _ENDS, size - _ENDS))
