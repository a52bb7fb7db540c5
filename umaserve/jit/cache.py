"""Folder of compiled samplers and policies, which are kept between starts.

numba's own cache looks at one file at a time.  A function that calls a function of another file is
not compiled again when that file changes.  So the directory's name holds a hash of every file that
compiled code depends on (``sources``) and of the versions that compile it.  Where the sources lie
does not matter (``locator``), so that clones and installations of one version share compiled code.

To find these files takes a tenth of a second of each start.  So a complete directory also holds a
hash of the whole package that used it last.  That hash is enough for the next start of the package.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_dir

from umaserve.kept import in_use
from umaserve.system.private_folder import NotPrivate, make_private, require_private_within

from .sources import compiled_sources

KEEP = 6  # folders of other versions that stay, the ones used last
# written when an engine has compiled everything that it runs: a hash of its package
COMPLETE = ".complete"
LOCATORS = "umaserve.jit.locator.PackageCacheLocator,UserProvidedCacheLocator"
_LOCATORS_SINCE = (0, 62)  # of numba
PACKAGE = Path(__file__).resolve().parent.parent


def jit_cache_dir() -> Path:
    """Directory for this source tree's compiled code; not created here."""
    for marker in _root().glob(f"*/{COMPLETE}"):
        with contextlib.suppress(OSError, ValueError):
            if marker.read_text("ascii") == _hash_of_package():
                return marker.parent
    return _root() / _hash_of(compiled_sources(PACKAGE))


@functools.cache
def _hash_of_package() -> str:
    return _hash_of(sorted(PACKAGE.rglob("*.py")))


def _hash_of(paths: Iterable[Path]) -> str:
    """Sixteen hex digits over files of the package, and over the versions that compile them."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    if not _places_do_not_matter():
        digest.update(str(PACKAGE).encode())
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(version(package).encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


def _root() -> Path:
    return Path(os.environ.get("UMA_CACHE_DIR") or user_cache_dir("umaserve")) / "jit"


def _places_do_not_matter() -> bool:
    """Whether numba can be told to keep entries by name; by itself it goes by path."""
    major, minor = version("numba").split(".")[:2]
    chosen = os.environ.get("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)
    return (int(major), int(minor)) >= _LOCATORS_SINCE and chosen == LOCATORS


def use_jit_cache() -> str:
    """Point numba at the directory; variables of numba's that are set already win.

    A directory that cannot be written is copied to a temporary one, which numba can add to.  Where
    others can change what lies in it, nothing of it is used: numba would run their code.
    Returns what a user should know of that, or an empty string.  Raises ``NotPrivate`` where there
    is no temporary folder of this user's alone either.
    """
    if "numba" in sys.modules:
        raise RuntimeError("numba is imported already; it reads NUMBA_CACHE_DIR when it is")
    folder = Path(os.environ.setdefault("NUMBA_CACHE_DIR", str(jit_cache_dir())))
    os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)
    try:
        make_private(folder)
        require_private_within(folder)
        with tempfile.TemporaryFile(dir=folder):
            in_use.hold(folder)
            return ""
    except NotPrivate as error:
        refused, other = str(error), _temporary_folder(folder.name, None)
    except OSError:
        refused, other = "", _temporary_folder(folder.name, folder)
    os.environ["NUMBA_CACHE_DIR"] = str(other)
    if is_complete():
        return refused
    why = refused or f"{folder} cannot be written and lacks compiled code"
    return (
        f"{why}. Samplers and scheduler are compiled into {other}, "
        "which takes some minutes whenever that folder is gone"
    )


def _temporary_folder(name: str, source: Path | None) -> Path:
    """A folder of this user's, the same one every time; made with what ``source`` holds."""
    owner = Path(tempfile.gettempdir(), f"umaserve-{os.geteuid()}")
    try:
        make_private(owner / "jit")
    except OSError:
        owner = Path(tempfile.mkdtemp(prefix="umaserve-"))
        make_private(owner / "jit")
    target = owner / "jit" / name
    if not target.exists():
        made = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
        if source is not None and source.is_dir():
            shutil.copytree(source, made, dirs_exist_ok=True)
        try:
            made.rename(target)
        except OSError:  # another engine was quicker
            shutil.rmtree(made, ignore_errors=True)
    return target


def is_complete() -> bool:
    """Whether an engine has compiled everything that it runs; after ``use_jit_cache``."""
    return (Path(os.environ["NUMBA_CACHE_DIR"]) / COMPLETE).exists()


def mark_complete() -> None:
    """Leave word that nothing has to be compiled any more.  A cache that is read-only stays so."""
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    try:
        (folder / COMPLETE).write_text(_hash_of_package(), "ascii")
    except OSError:
        return  # numba could not write there either: the next start compiles again


def sweep() -> None:
    """Remove compiled code of other versions that no process uses; after ``use_jit_cache``.

    The `KEEP` newest stay while somebody uses them now and then.  Where numba was told to keep code
    elsewhere, nothing is removed.
    """
    root = _root()
    if Path(os.environ["NUMBA_CACHE_DIR"]).parent == root:
        in_use.sweep(in_use.folders(root), KEEP + 1)
        in_use.sweep_remains(root)
