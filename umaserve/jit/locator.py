"""Has numba keep compiled code by what a source is called in this package, not by where that lies.

Another clone of the same sources, or an installation into another environment, then finds what was
compiled before.  It saves a minute and a half of compiling.  ``cache`` names this class in
``NUMBA_CACHE_LOCATOR_CLASSES`` (numba 0.62 and later) and keeps sources that differ apart.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

_ROOT = Path(__file__).resolve().parent.parent.parent


class PackageCacheLocator(UserProvidedCacheLocator):
    """A folder for each of the package's own; files of others lie where numba would put them."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        folder = Path(py_file).resolve().parent
        if not folder.is_relative_to(_ROOT / "umaserve"):
            return str(super().get_suitable_cache_subpath(py_file))
        # no package's name has a dot, so no two folders get one name
        return ".".join(folder.relative_to(_ROOT).parts)

    def get_source_stamp(self) -> str:
        """SHA-256 of the file's content: a copy matches, whenever it was written."""
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()
