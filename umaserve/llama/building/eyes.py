"""Builds uma-eyes, which makes embeddings of pictures, from the source that libllama came from.

On demand: it takes half a minute of two cores, and most models read text alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from umaserve.llama import builds

from . import BuildError
from .chat import compile_program
from .progress import Reporter
from .toolchain import Toolchain

_NEEDED = ("tools/mtmd/mtmd.h", "tools/mtmd/clip.cpp", "vendor/stb/stb_image.h")


def make(
    tree: Path, build: builds.Build, aside: Path, jobs: int, tools: Toolchain, log: Path,
    report: Reporter, lock: int,
) -> None:  # fmt: skip
    """Put uma-eyes into ``build.eyes_dir``.  Raises `BuildError` where it cannot be built.

    ``tree`` is llama.cpp's source; ``aside`` is a folder for what is made on the way.
    """
    for name in _NEEDED:
        if not (tree / name).exists():
            raise BuildError(f"uma-eyes cannot be built: this llama.cpp source has no {name}")
    defines = [f"-DLLAMA_TREE={tree}", f"-DLLAMA_BUILD={build.path}"]
    program = compile_program(
        "uma-eyes", builds.EYES_SOURCES, defines, aside / "eyes-build",
        jobs, tools, log, report, lock,
    )  # fmt: skip
    out = aside / "eyes"
    out.mkdir()
    shutil.copy2(program, out / program.name)
    picture = tree / "tools" / "mtmd" / "test-1.jpeg"
    if picture.exists():  # for tests
        shutil.copy2(picture, out / picture.name)
    shutil.rmtree(build.eyes_dir, ignore_errors=True)
    build.eyes_dir.parent.mkdir(exist_ok=True)
    out.rename(build.eyes_dir)
