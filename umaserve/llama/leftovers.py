"""Leftovers of libllama in the cache from other versions of umaserve, and their removal.

Builds of the source that this version is made for stay, however long nobody uses them.  Builds of
a source of somebody's own stay too.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from umaserve.kept import in_use
from umaserve.kept.in_use import folders

from . import builds

_PINNED = re.compile(r"\d+(\.\d+)+")
_ARCHIVE = "llama_cpp_python-{}.tar.gz"


def is_of_another_version(build: builds.Build) -> bool:
    """Whether it is of the source that another version of umaserve is made for."""
    return build.source != builds.PINNED_VERSION and bool(_PINNED.fullmatch(build.source))


def sweep() -> None:
    """Remove builds, tools and sources that nobody has used for `in_use.UNUSED_S`; see there."""
    root = builds.cache_root()
    in_use.sweep(_old_builds(builds.builds_root()))
    in_use.sweep(_old_parts(builds.builds_root()))
    in_use.sweep(folders(root / "tools"))
    for folder in (builds.builds_root(), root / "tools"):
        in_use.sweep_remains(folder)
    _sweep_archives(root / "src")


def _old_builds(root: Path) -> list[Path]:
    whole = [folder for folder in folders(root) if (folder / builds.MANIFEST).exists()]
    found = {folder: builds.read_build(folder) for folder in whole}
    # None: of another format
    return [path for path, build in found.items() if build is None or is_of_another_version(build)]


def _old_parts(root: Path) -> list[Path]:
    """Bindings and uma-chats of other versions, in builds that stay."""
    from bindings import module_dir

    old: list[Path] = []
    for build in map(builds.read_build, folders(root)):
        if build is not None:
            parts = {*folders(build.path / "chat"), *folders(build.path / "python")}
            old += parts - {build.chat_dir, module_dir(build.path)}
    return old


def _sweep_archives(root: Path) -> None:
    current = _ARCHIVE.format(builds.PINNED_VERSION)
    for path in root.glob(_ARCHIVE.format("*")):
        with contextlib.suppress(OSError):
            if path.name != current and path.stat().st_mtime < time.time() - in_use.UNUSED_S:
                path.unlink()
